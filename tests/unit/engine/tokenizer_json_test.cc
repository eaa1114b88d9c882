#include "engine/tokenizer/tokenizer_json.h"

#include "engine/tokenizer/chat_template.h"
#include "engine/tokenizer/folder_chat_template.h"
#include "engine/tokenizer/tokenizer.h"
#include "support/checkpoint_dir.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace kvant::engine {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using testing::CheckpointDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// Characters with byte fallback, as Llama 2 and Gemma have it. Ids: <unk> 0, <s> 1, </s> 2, bytes 3 to 258, then the
/// tokens below.
Json sentencepiece() {
  Json vocabulary = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < 256; ++byte) vocabulary[fmt::format("<0x{:02X}>", byte)] = 3 + byte;
  int id = 259;
  for (const char* token : {"\u2581", "a", "b", "c", "ab", "\u2581ab", "\u2581a", "\n"}) vocabulary[token] = id++;
  const auto added = [](int token, const char* text) {
    return Json{{"id", token},     {"content", text},     {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", false}, {"special", true}};
  };
  return {
      {"version", "1.0"},
      {"added_tokens", Json::array({added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")})},
      {"normalizer",
       {{"type", "Sequence"},
        {"normalizers", Json::array({{{"type", "Prepend"}, {"prepend", "\u2581"}},
                                     {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}})}}},
      {"pre_tokenizer", nullptr},
      {"post_processor",
       {{"type", "TemplateProcessing"},
        {"single", Json::array({{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
                                {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}})}}},
      {"decoder",
       {{"type", "Sequence"},
        {"decoders", Json::array({{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
                                  {{"type", "ByteFallback"}},
                                  {{"type", "Fuse"}},
                                  {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}})}}},
      {"model",
       {{"type", "BPE"},
        {"unk_token", "<unk>"},
        {"byte_fallback", true},
        {"fuse_unk", true},
        {"vocab", vocabulary},
        {"merges", Json::array({Json::array({"a", "b"}), "\u2581 ab", "\u2581 a"})}}}};
}

Result<Tokenizer> read(const Json& json) {
  KVANT_ASSIGN_OR_FAIL(const JsonObject object, JsonObject::parse(json.dump(), "tokenizer.json"));
  KVANT_ASSIGN_OR_FAIL(TokenizerData data, read_tokenizer_json(object));
  return Tokenizer::from_data(std::move(data));
}

std::string error_of(const Json& json) {
  const auto tokenizer = read(json);
  return tokenizer ? "accepted" : tokenizer.error().message();
}

TEST(TokenizerJson, ReadsSentencePieceWithByteFallback) {
  const Tokenizer tokenizer = read(sentencepiece()).value();
  EXPECT_THAT(tokenizer.encode("ab"), ElementsAre(264));
  EXPECT_THAT(tokenizer.encode("ab ab"), ElementsAre(264, 264));
  EXPECT_THAT(tokenizer.encode("ac"), ElementsAre(265, 262));
  EXPECT_THAT(tokenizer.encode("\u00e9"), ElementsAre(259, 3 + 0xC3, 3 + 0xA9));
  EXPECT_THAT(tokenizer.encode(""), IsEmpty());
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("ab \u00e9 c")), "ab \u00e9 c") << "the added space goes again";
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("a\xFF")), "a\xFF");
  EXPECT_TRUE(tokenizer.add_bos());
  EXPECT_THAT(tokenizer.encode_prompt("ab"), ElementsAre(1, 264));
  EXPECT_THAT(tokenizer.encode_with_specials("ab</s>ab"), ElementsAre(264, 2, 264))
      << "a prefix after each special token";
  EXPECT_THAT(tokenizer.encode("</s>"), Not(::testing::Contains(2)));
}

TEST(TokenizerJson, UsesTheUnknownTokenWithoutByteFallback) {
  Json json = sentencepiece();
  json["model"]["byte_fallback"] = false;
  EXPECT_THAT(read(json)->encode("axyb"), ElementsAre(265, 0, 261));
  json["model"]["fuse_unk"] = false;
  EXPECT_THAT(read(json)->encode("axyb"), ElementsAre(265, 0, 0, 261));
  json["model"]["unk_token"] = nullptr;
  EXPECT_THAT(read(json)->encode("axyb"), ElementsAre(264)) << "what is left merges";
}

TEST(TokenizerJson, PutsMetaspaceWhereItsSchemeSays) {
  Json json = sentencepiece();
  json["normalizer"] = nullptr;
  json["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "first"}, {"split", false}};
  EXPECT_THAT(read(json)->encode_with_specials("ab</s>ab"), ElementsAre(264, 2, 263));
  EXPECT_THAT(read(json)->encode(" ab"), ElementsAre(264));
  json["pre_tokenizer"]["prepend_scheme"] = "always";
  EXPECT_THAT(read(json)->encode_with_specials("ab</s>ab"), ElementsAre(264, 2, 264));
  json["pre_tokenizer"]["prepend_scheme"] = "never";
  EXPECT_THAT(read(json)->encode("ab"), ElementsAre(263));
  json["pre_tokenizer"]["split"] = true;
  EXPECT_THAT(read(json)->encode("a ab"), ElementsAre(260, 264));
}

TEST(TokenizerJson, HonoursTheFlagsOfAddedTokens) {
  Json json = sentencepiece();
  json["added_tokens"][2]["lstrip"] = true;
  EXPECT_THAT(read(json)->encode_with_specials("ab \n</s>"), ElementsAre(264, 2));
  json["added_tokens"][2]["lstrip"] = false;
  json["added_tokens"][2]["rstrip"] = true;
  EXPECT_THAT(read(json)->encode_with_specials("</s> \n ab"), ElementsAre(2, 264));
  const std::vector<PromptPiece> pieces = {{"</s> ", true}, {" \t", false}, {" ab", false}};
  EXPECT_THAT(read(json)->encode(pieces), ElementsAre(2, 264)) << "white space of a message goes, too";
  json["added_tokens"][2]["rstrip"] = false;
  json["added_tokens"].push_back(
      {{"id", 267}, {"content", "cc"}, {"special", true}, {"single_word", true}, {"lstrip", false}, {"rstrip", false}});
  EXPECT_THAT(read(json)->encode_with_specials("a cc"), ElementsAre(265, 259, 267));
  EXPECT_THAT(read(json)->encode_with_specials("acc"), ElementsAre(265, 262, 262));
  EXPECT_THAT(read(json)->encode_with_specials("cc\u00e9"), Not(::testing::Contains(267)));
}

TEST(TokenizerJson, FindsAddedTokensInPlainTextOnlyWhereTheyAreOrdinaryText) {
  Json json = sentencepiece();
  int id = 267;
  for (const char* text : {"\n\n", "<table>", "<tool_call>", "\u2581\u2581"})
    json["added_tokens"].push_back({{"id", id++}, {"content", text}, {"special", false}});
  const Tokenizer tokenizer = read(json).value();
  EXPECT_THAT(tokenizer.encode("\n\n<table>"), ElementsAre(267, 268));
  EXPECT_THAT(tokenizer.encode("<tool_call>"), Not(::testing::Contains(269)));
  EXPECT_THAT(tokenizer.encode_with_specials("<tool_call>"), ElementsAre(269));
}

TEST(TokenizerJson, ReadsByteLevelWithSplits) {
  Json vocabulary;
  int id = 0;
  for (const char* token : {"a", "b", "1", "2", "\u0120", "ab", "\u0120ab", "12", "<x>", "b1"})
    vocabulary[token] = id++;
  const Json json = {
      {"added_tokens", Json::array()},
      {"normalizer", {{"type", "NFC"}}},
      {"pre_tokenizer",
       {{"type", "Sequence"},
        {"pretokenizers",
         Json::array({{{"type", "Split"}, {"pattern", {{"Regex", "\\p{N}{1,3}"}}}, {"behavior", "Isolated"}},
                      {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}})}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", Json::array({"a b", "\u0120 ab", "b 1", "1 2"})}}}};
  EXPECT_THAT(read(json)->encode("ab12 ab"), ElementsAre(5, 7, 6)) << "b and 1 are never one word";
  Json other = json;
  other["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "MergedWithPrevious";
  EXPECT_THAT(read(other)->encode("ab1"), ElementsAre(5, 2)) << "the merge of a and b comes first";
  other["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed";
  EXPECT_THAT(read(other)->encode("ab12ab"), ElementsAre(5, 5));
  other = json;
  other["model"]["ignore_merges"] = true;
  other["model"]["merges"] = Json::array();
  EXPECT_THAT(read(other)->encode("ab"), ElementsAre(5));
}

TEST(TokenizerJson, RefusesWhatItDoesNotKnowByName) {
  const auto changed = [](auto change) {
    Json json = sentencepiece();
    change(json);
    return error_of(json);
  };
  EXPECT_THAT(changed([](Json& j) { j["model"]["type"] = "Unigram"; }), HasSubstr("'Unigram'"));
  EXPECT_THAT(changed([](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }), HasSubstr("end_of_word_suffix"));
  EXPECT_THAT(changed([](Json& j) { j["model"]["dropout"] = 0.1; }), HasSubstr("dropout"));
  EXPECT_THAT(changed([](Json& j) { j["normalizer"] = {{"type", "Precompiled"}}; }), HasSubstr("'Precompiled'"));
  EXPECT_THAT(changed([](Json& j) {
                j["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
              }),
              HasSubstr("'BertPreTokenizer'"));
  EXPECT_THAT(changed([](Json& j) { j["decoder"] = {{"type", "WordPiece"}}; }), HasSubstr("'WordPiece'"));
  EXPECT_THAT(changed([](Json& j) {
                j["post_processor"] = {{"type", "RobertaProcessing"}};
              }),
              HasSubstr("'RobertaProcessing'"));
  const auto split = [&](const char* pattern) {
    return changed([&](Json& j) {
      j["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
    });
  };
  EXPECT_THAT(split("[\\p{L}&&[^\\p{Han}]]"), HasSubstr("intersects sets"));
  EXPECT_THAT(split("(unclosed"), HasSubstr("PCRE2 error"));
  EXPECT_THAT(changed([](Json& j) {
                j["pre_tokenizer"] = {
                    {"type", "Sequence"},
                    {"pretokenizers", Json::array({{{"type", "ByteLevel"}}, {{"type", "Punctuation"}}})}};
              }),
              HasSubstr("'Punctuation' after ByteLevel"));
  EXPECT_THAT(
      changed([](Json& j) {
        const Json words = {{"type", "Split"}, {"pattern", {{"Regex", "[a-z]+"}}}, {"behavior", "Isolated"}};
        j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", Json::array({{{"type", "ByteLevel"}}, words})}};
      }),
      HasSubstr("'[a-z]+' after ByteLevel"));
}

TEST(TokenizerJson, RefusesVocabulariesThatContradictThemselves) {
  const auto changed = [](auto change) {
    Json json = sentencepiece();
    change(json);
    return error_of(json);
  };
  EXPECT_THAT(changed([](Json& j) { j["model"]["vocab"]["x"] = -1; }), HasSubstr("token 'x'"));
  EXPECT_THAT(changed([](Json& j) { j["model"]["vocab"]["x"] = 1ull << 63; }), HasSubstr("token 'x'"));
  EXPECT_THAT(changed([](Json& j) { j["model"]["vocab"]["x"] = 16000000; }), HasSubstr("have ids up to 16000000"));
  EXPECT_THAT(changed([](Json& j) { j["model"]["vocab"]["x"] = 1; }), HasSubstr("have the same id 1"));
  EXPECT_THAT(changed([](Json& j) { j["model"]["merges"].push_back("nospace"); }),
              HasSubstr("merge 3 is not two tokens"));
  EXPECT_THAT(changed([](Json& j) { j["model"]["merges"].push_back("q q"); }), HasSubstr("needs token 'q'"));
  EXPECT_THAT(changed([](Json& j) { j["model"]["unk_token"] = "?"; }), HasSubstr("'unk_token'"));
  EXPECT_THAT(changed([](Json& j) { j["added_tokens"][0]["id"] = 1e30; }), HasSubstr("'id'"));
  EXPECT_THAT(changed([](Json& j) { j.erase("model"); }), HasSubstr("'model' is missing"));
  EXPECT_THAT(changed([](Json& j) { j["post_processor"]["single"][0]["SpecialToken"]["id"] = "<q>"; }),
              HasSubstr("'<q>' is not in the vocabulary"));
}

TEST(TokenizerJson, UnitesEndsOfTurnsFromAllFilesOfAFolder) {
  const CheckpointDir dir;
  Json json = sentencepiece();
  json["added_tokens"].push_back({{"id", 267}, {"content", "<end_of_turn>"}, {"special", true}});
  dir.write("tokenizer.json", json.dump());
  const auto ends = [&] {
    const auto tokenizer = Tokenizer::from_folder(dir.path());
    EXPECT_TRUE(tokenizer) << tokenizer.error().message();
    return std::vector<int32_t>(tokenizer->end_of_turn().begin(), tokenizer->end_of_turn().end());
  };
  EXPECT_THAT(ends(), ElementsAre(267)) << "a well-known name";
  dir.write("tokenizer_config.json", R"({"eos_token": {"content": "</s>"}, "bos_token": "<s>"})");
  EXPECT_THAT(ends(), ElementsAre(2, 267));
  dir.write("config.json", R"({"eos_token_id": 260, "text_config": {"eos_token_id": [266]}})");
  dir.write("generation_config.json", R"({"eos_token_id": [261, 2, 300]})");
  EXPECT_THAT(ends(), ElementsAre(2, 260, 266, 261, 267)) << "300 is beyond the vocabulary";
  dir.write("generation_config.json", R"({"eos_token_id": "x"})");
  EXPECT_THAT(Tokenizer::from_folder(dir.path()).error().message(),
              HasSubstr("generation_config.json: 'eos_token_id'"));
}

TEST(TokenizerJson, TakesBosFromTheConfigWhenThePostProcessorSaysNothing) {
  const CheckpointDir dir;
  Json json = sentencepiece();
  json["post_processor"] = nullptr;
  dir.write("tokenizer.json", json.dump());
  EXPECT_FALSE(Tokenizer::from_folder(dir.path())->add_bos());
  dir.write("tokenizer_config.json", R"({"add_bos_token": true, "bos_token": "<s>"})");
  EXPECT_TRUE(Tokenizer::from_folder(dir.path())->add_bos());
  json["post_processor"] = sentencepiece()["post_processor"];
  dir.write("tokenizer.json", json.dump());
  dir.write("tokenizer_config.json", R"({"add_bos_token": false, "bos_token": "<s>"})");
  EXPECT_FALSE(Tokenizer::from_folder(dir.path())->add_bos());
}

TEST(TokenizerJson, SaysWhichFileAFolderLacks) {
  const CheckpointDir dir;
  EXPECT_THAT(Tokenizer::from_folder(dir.path()).error().message(),
              AllOf(HasSubstr("tokenizer.json' is missing"), Not(HasSubstr("tokenizer.model"))));
  dir.write("tokenizer.model", "x");
  EXPECT_THAT(Tokenizer::from_folder(dir.path()).error().message(), HasSubstr("tokenizer.model alone is not read"));
}

TEST(TokenizerJson, FindsTheChatTemplateOfAFolder) {
  const CheckpointDir dir;
  EXPECT_FALSE(read_folder_chat_template(dir.path()).value());
  dir.write("chat_template.json", R"({"chat_template": "json"})");
  EXPECT_EQ(read_folder_chat_template(dir.path()).value(), "json");
  dir.write("tokenizer_config.json",
            R"({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]})");
  EXPECT_EQ(read_folder_chat_template(dir.path()).value(), "d");
  dir.write("tokenizer_config.json", R"({"chat_template": "config"})");
  EXPECT_EQ(read_folder_chat_template(dir.path()).value(), "config");
  dir.write("chat_template.jinja", "jinja");
  EXPECT_EQ(read_folder_chat_template(dir.path()).value(), "jinja");
  dir.write("chat_template.jinja", std::string((1 << 20) + 1, 'x'));
  EXPECT_THAT(read_folder_chat_template(dir.path()).error().message(), HasSubstr("at most 1048576 are read"));
}

TEST(TokenizerJson, SurvivesRandomMutations) {
  const std::string good = sentencepiece().dump();
  uint32_t state = 5;
  const auto random = [&state] { return (state = state * 1664525u + 1013904223u) >> 8; };
  int accepted = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string text = good;
    for (int i = 0; i < 1 + round % 4; ++i) text[random() % text.size()] = good[random() % good.size()];
    const auto object = JsonObject::parse(text, "t");
    if (!object) continue;
    auto data = read_tokenizer_json(*object);
    if (!data) continue;
    const auto tokenizer = Tokenizer::from_data(*std::move(data));
    if (!tokenizer) continue;
    ++accepted;
    for (const int32_t id : tokenizer->encode_with_specials("ab <s>c\xFF\u00e9"))
      ASSERT_LT(id, tokenizer->vocabulary_size());
  }
  EXPECT_GT(accepted, 100) << "the mutations never get past the reader";
}

}  // namespace
}  // namespace kvant::engine
