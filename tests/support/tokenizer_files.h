#pragma once

#include "support/tiny_llama.h"

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

namespace kvant::testing {

/// A tokenizer.json of single bytes, an end-of-text token and padding, for tiny models of folders.
inline std::string byte_tokenizer_json(int32_t vocabulary) {
  nlohmann::json tokens = {{"<|endoftext|>", 0}};
  for (int byte = 0; byte < 256; ++byte) tokens[tiny_llama::byte_symbol(byte)] = byte + 1;
  for (int32_t id = 257; id < vocabulary; ++id) tokens["<unused" + std::to_string(id) + ">"] = id;
  const nlohmann::json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  return nlohmann::json{
      {"added_tokens", nlohmann::json::array({{{"id", 0}, {"content", "<|endoftext|>"}, {"special", true}}})},
      {"normalizer", nullptr},
      {"pre_tokenizer", byte_level},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", tokens}, {"merges", nlohmann::json::array()}}}}
      .dump();
}

}  // namespace kvant::testing
