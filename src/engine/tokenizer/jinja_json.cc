#include "engine/tokenizer/jinja_json.h"

#include <memory>
#include <utility>

#include <nlohmann/json.hpp>

namespace kvant::engine::jinja {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 64;

Result<Value> convert(const Json& json, int depth) {
  if (depth > kMaxDepth) return failure(StatusCode::kInvalidArgument, "JSON for a chat template is nested too deeply");
  switch (json.type()) {
    case Json::value_t::null: return Value(None{});
    case Json::value_t::boolean: return Value(json.get<bool>());
    case Json::value_t::number_integer: return Value(json.get<int64_t>());
    case Json::value_t::number_unsigned:
      if (json.get<uint64_t>() > INT64_MAX) return Value(json.get<double>());
      return Value(json.get<int64_t>());
    case Json::value_t::number_float: return Value(json.get<double>());
    case Json::value_t::string: return make_text(json.get_ref<const std::string&>(), Text::kMessage);
    case Json::value_t::array: {
      auto list = std::make_shared<List>();
      for (const Json& item : json) {
        KVANT_ASSIGN_OR_FAIL(Value value, convert(item, depth + 1));
        list->items.push_back(std::move(value));
      }
      list->measure();
      return Value(ListPtr(std::move(list)));
    }
    case Json::value_t::object: {
      auto dict = std::make_shared<Dict>();
      for (const auto& [key, item] : json.items()) {
        KVANT_ASSIGN_OR_FAIL(Value value, convert(item, depth + 1));
        dict->items.emplace_back(make_text(key, Text::kMessage), std::move(value));
      }
      dict->measure();
      return Value(DictPtr(std::move(dict)));
    }
    case Json::value_t::binary:
    case Json::value_t::discarded: break;
  }
  return failure(StatusCode::kInvalidArgument, "JSON for a chat template cannot be read");
}

}  // namespace

Result<Value> value_of_json(std::string_view text) {
  // Callers have parsed it before, within limits; a text that nests deeper is refused as it is converted.
  const Json json = Json::parse(text, nullptr, false);
  return convert(json, 0);
}

}  // namespace kvant::engine::jinja
