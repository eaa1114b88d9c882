#include "engine/tokenizer/chat_template.h"

#include <fstream>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace kvant::engine {
namespace {

using testing::HasSubstr;

std::tm july_26() {
  std::tm now{};
  now.tm_year = 124;
  now.tm_mon = 6;
  now.tm_mday = 26;
  now.tm_hour = 12;
  now.tm_wday = 5;
  return now;
}

const std::vector<ChatMessage>& greeting() {
  static const std::vector<ChatMessage> messages = {{"user", " Hi <|end|>\n"}};
  return messages;
}

Result<std::vector<PromptPiece>> render(const std::string& source,
                                        const std::vector<ChatMessage>& messages = greeting()) {
  const auto parsed = ChatTemplate::parse(source);
  if (!parsed) return failure(parsed.error());
  return parsed->render(messages, true, "<s>", "</s>", july_26());
}

std::string joined(const Result<std::vector<PromptPiece>>& pieces) {
  if (!pieces) return pieces.error().to_string();
  std::string text;
  for (const PromptPiece& piece : *pieces) text += piece.text;
  return text;
}

/// Pieces with message text in [brackets].
std::string marked(const Result<std::vector<PromptPiece>>& pieces) {
  if (!pieces) return pieces.error().to_string();
  std::string text;
  for (const PromptPiece& piece : *pieces) text += piece.from_template ? piece.text : "[" + piece.text + "]";
  return text;
}

Status error_of(const std::string& source) {
  const auto pieces = render(source);
  return pieces ? Status() : pieces.error();
}

nlohmann::json golden() {
  return nlohmann::json::parse(std::ifstream(KVANT_SOURCE_DIR "/tests/golden/chat_templates.json"));
}

TEST(ChatTemplate, RendersLikeJinja2) {
  const nlohmann::json json = golden();
  std::vector<ChatMessage> messages;
  for (const auto& message : json["messages"]) messages.push_back({message["role"], message["content"]});
  ASSERT_GT(json["cases"].size(), 40U);
  for (const auto& item : json["cases"]) {
    SCOPED_TRACE(item["name"].get<std::string>());
    const auto pieces = render(item["template"], messages);
    if (item["expected"].is_null()) {
      EXPECT_FALSE(pieces);
    } else {
      EXPECT_TRUE(pieces);
      EXPECT_EQ(joined(pieces), item["expected"].get<std::string>());
    }
  }
}

TEST(ChatTemplate, MarksMessageTextThroughEveryOperation) {
  const auto with = [](const std::string& expression) { return marked(render("{{ " + expression + " }}")); };
  const std::string c = "messages[0].content";
  EXPECT_EQ(with("'<' + " + c + " + '>'"), "<[ Hi <|end|>\n]>");
  EXPECT_EQ(with("'<' ~ " + c + " | trim ~ '>'"), "<[Hi <|end|>]>");
  EXPECT_EQ(with(c + ".strip() | upper"), "[HI <|END|>]");
  EXPECT_EQ(with(c + "[1:3]"), "[Hi]");
  EXPECT_EQ(with(c + "[1]"), "[H]");
  EXPECT_EQ(with(c + ".split('<')[1] | trim"), "[|end|>]");
  EXPECT_EQ(with(c + ".split() | join('+')"), "[Hi]+[<|end|>]");
  EXPECT_EQ(with("'a-b'.replace('-', " + c + " | trim)"), "a[Hi <|end|>]b");
  EXPECT_EQ(with(c + " | trim | replace('Hi ', 'Ho')"), "Ho[<|end|>]");
  EXPECT_EQ(with(c + " | tojson"), "\"[ Hi <|end|>\\n]\"");
  EXPECT_EQ(with("[" + c + " | trim]"), "['[Hi <|end|>]']");
  EXPECT_EQ(with("{" + c + " | trim: 1} | items | first | first"), "[Hi <|end|>]");
  EXPECT_EQ(with("(" + c + " | trim) * 2"), "[Hi <|end|>Hi <|end|>]");
  EXPECT_EQ(with("messages[0].role | capitalize"), "[User]");
  EXPECT_EQ(with(c + " | string | safe | list | reverse | join | trim"), "[>|dne|< iH]");
  EXPECT_EQ(with(c + " | trim | indent(2, true)"), "  [Hi <|end|>]");
  EXPECT_EQ(marked(render("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(messages[0].role) }}")), "<[user]>");
  EXPECT_EQ(marked(render("{% set x %}a{{ messages[0].role }}{% endset %}{{ x | trim }}")), "a[user]");
  EXPECT_EQ(marked(render("{% set ns = namespace(x='') %}{% set ns.x = ns.x + messages[0].role %}{{ ns.x }}")),
            "[user]");
  EXPECT_EQ(marked(render("{% for c in messages[0].role %}{{ c }}{% endfor %}")), "[user]");
}

TEST(ChatTemplate, MergesPiecesOfOneOrigin) {
  const auto pieces = render("{{ 'a' }}b{{ bos_token }}{{ messages[0].role }}{{ messages[0].role }}{{ eos_token }}");
  ASSERT_TRUE(pieces);
  ASSERT_EQ(pieces->size(), 3U);
  EXPECT_EQ((*pieces)[0].text, "ab<s>");
  EXPECT_EQ((*pieces)[1].text, "useruser");
  EXPECT_FALSE((*pieces)[1].from_template);
  EXPECT_EQ((*pieces)[2].text, "</s>");
}

TEST(ChatTemplate, GivesTheTemplatesOwnErrorText) {
  const Status status = error_of("{{ raise_exception('roles must alternate') }}");
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("roles must alternate"));
}

TEST(ChatTemplate, RefusesUnknownConstructsByNameAndLine) {
  const std::pair<std::string, std::string> cases[] = {
      {"\n\n{% include 'x' %}", "'include'"},
      {"\n\n{% raw %}", "'raw'"},
      {"\n\n{% call x() %}{% endcall %}", "'call'"},
      {"\n\n{{ a | frobnicate }}", "'frobnicate'"},
      {"\n\n{% if a is weird %}{% endif %}", "'weird'"},
      {"\n\n{{ a.insert(1) }}", "'insert'"},
      {"\n\n{{ lipsum() }}", "'lipsum'"},
      {"\n\n{{ a | tojson(foo=1) }}", "'foo'"},
      {"\n\n{% for x in y recursive %}{% endfor %}", "'recursive'"},
      {"\n\n{{ f(*a) }}", "'f'"},
  };
  for (const auto& [source, name] : cases) {
    const auto parsed = ChatTemplate::parse(source);
    ASSERT_FALSE(parsed) << source;
    EXPECT_EQ(parsed.error().code(), StatusCode::kUnsupported) << source << ": " << parsed.error().message();
    EXPECT_THAT(parsed.error().message(), HasSubstr(name));
    EXPECT_THAT(parsed.error().message(), HasSubstr("line 3"));
  }
}

TEST(ChatTemplate, RefusesMacrosThatHideFunctions) {
  EXPECT_FALSE(ChatTemplate::parse("{{ range() }}{% macro range() %}{% endmacro %}"));
  EXPECT_FALSE(render("{% set m = raise_exception %}{{ m('x') }}{% macro m(x) %}{% endmacro %}"));
}

TEST(ChatTemplate, RefusesBrokenSyntax) {
  for (const std::string source : {"{{",
                                   "{{ 1",
                                   "{% if %}",
                                   "{% if 1 %}",
                                   "{% endif %}",
                                   "{% for in x %}{% endfor %}",
                                   "{{ 'a }}",
                                   "{# x",
                                   "{{ (1 }}",
                                   "{{ [1 }}",
                                   "{{ 1 + }}",
                                   "{{ a. }}",
                                   "{{ a[] }}",
                                   "{{ ) }}",
                                   "{% set = 1 %}",
                                   "{% else %}",
                                   "{{ 1 2 }}",
                                   "{{ @ }}",
                                   "{% macro %}",
                                   "{{ '\\uD800' }}",
                                   "{% break %}",
                                   "{{ 99999999999999999999 }}",
                                   "{{ x | trim(1, 2, 3) }}",
                                   "{{ a[1:2:3:4] }}",
                                   "{% for a in b %}{% endif %}"}) {
    EXPECT_FALSE(ChatTemplate::parse(source)) << source;
  }
}

TEST(ChatTemplate, BoundsTheWorkOfHostileTemplates) {
  std::string deep_brackets = "{{ ";
  for (int i = 0; i < 100'000; ++i) deep_brackets += "(";
  std::string deep_blocks;
  for (int i = 0; i < 100'000; ++i) deep_blocks += "{% if 1 %}";
  std::string long_sum = "{{ 1";
  for (int i = 0; i < 100'000; ++i) long_sum += "+1";
  std::string minus = "{{ ";
  for (int i = 0; i < 100'000; ++i) minus += "- ";
  std::string fields = "{{ a";
  for (int i = 0; i < 100'000; ++i) fields += ".b";
  for (const std::string& source :
       {deep_brackets, deep_blocks, long_sum + " }}", minus + "1 }}", fields + " }}",
        std::string("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
        std::string("{% macro m(x) %}{{ m(m(x)) }}{% endmacro %}{{ m(1) }}"),
        std::string("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"),
        std::string("{{ range(10 ** 12) }}"), std::string("{{ 'x' * 10 ** 15 }}"), std::string("{{ '' * 10 ** 15 }}"),
        std::string("{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"),
        std::string("{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x.replace('a', 'aab') "
                    "%}{% endfor %}"),
        std::string("{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"),
        std::string(
            "{% set ns = namespace(x=[1]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}"),
        std::string("{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor "
                    "%}{{ ns.x }}"),
        std::string("{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor "
                    "%}{{ ns.x == ns.x }}{{ ns.x | tojson }}")}) {
    EXPECT_FALSE(render(source)) << source.substr(0, 100);
  }
}

TEST(ChatTemplate, KeepsANamespaceThatHoldsItself) {
  EXPECT_EQ(joined(render("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns.me.me is defined }}")), "True");
}

TEST(ChatTemplate, AcceptsLongMessages) {
  const std::vector<ChatMessage> messages = {{"user", std::string(3'000'000, 'x')}};
  const auto pieces =
      render("{% for m in messages %}<{{ m.content | trim }}>{{ m.content[:2] }}{% endfor %}", messages);
  ASSERT_TRUE(pieces) << pieces.error().to_string();
  EXPECT_EQ((*pieces)[1].text.size(), 3'000'000U);
}

TEST(ChatTemplate, SurvivesMutatedTemplates) {
  std::mt19937 random(20240607);
  const auto pick = [&](size_t size) { return std::uniform_int_distribution<size_t>(0, size - 1)(random); };
  std::vector<std::string> sources;
  const nlohmann::json json = golden();
  for (const auto& item : json["cases"]) sources.push_back(item["template"]);
  const std::string bits[] = {"{{", "}}",   "{%",    "%}",   "{#", "-", "(",  ")",    "[", "]",
                              "'",  " if ", " for ", " in ", "|",  ".", "\\", "\xFF", "1"};
  int rendered = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string source = sources[pick(sources.size())];
    for (size_t change = 0; change <= pick(3); ++change) {
      const size_t at = pick(source.size() + 1);
      switch (pick(4)) {
        case 0: source.erase(at, 1 + pick(6)); break;
        case 1: source.insert(at, bits[pick(std::size(bits))]); break;
        case 2: source.insert(at, source.substr(pick(source.size() + 1), pick(20))); break;
        default:
          if (at < source.size()) source[at] = static_cast<char>(pick(256));
      }
      if (source.empty()) source = " ";
    }
    rendered += render(source).has_value();
  }
  EXPECT_GT(rendered, 100) << "almost every mutation was refused, so little was tried";
}

}  // namespace
}  // namespace kvant::engine
