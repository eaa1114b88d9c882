#include "engine/grammar/json_schema.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/grammar/json_rules.h"

namespace kvant::engine {
namespace {

using Json = nlohmann::ordered_json;
using Place = ProgramBuilder::Place;

constexpr size_t kMaxInstructions = 200'000;
constexpr int64_t kMaxCount = 1024;
constexpr int kMaxDepth = 64;

/// Keywords that say nothing about what is valid.
constexpr std::array<std::string_view, 11> kAnnotations{"title",    "description", "default", "examples",
                                                        "$schema",  "$id",         "$defs",   "definitions",
                                                        "$comment", "deprecated",  "readOnly"};

class SchemaCompiler {
 public:
  explicit SchemaCompiler(const Json& root) : root_(root), rules_(builder_) {}

  ByteProgram compile(std::string_view before, std::string_view after) {
    const int32_t whole = rule_for(root_, "#", 0);
    return builder_.finish(builder_.literal(before, builder_.call(whole, builder_.literal(after, builder_.end()))));
  }
  const Status& status() const { return status_; }

 private:
  void fail(const std::string& path, const std::string& problem) {
    if (status_.ok()) status_ = {StatusCode::kUnsupported, fmt::format("JSON schema, {}: {}", path, problem)};
  }

  /// Refuses keywords besides `known` and annotations.
  void check_keywords(const Json& schema, const std::string& path, std::initializer_list<std::string_view> known) {
    for (const auto& [name, value] : schema.items()) {
      const auto is_name = [&name = name](std::string_view other) { return other == name; };
      if (std::any_of(known.begin(), known.end(), is_name)) continue;
      if (std::any_of(kAnnotations.begin(), kAnnotations.end(), is_name)) continue;
      fail(path, fmt::format("'{}' is not supported here; see docs/server.md for what is", name.substr(0, 40)));
    }
  }

  int32_t rule_for(const Json& schema, const std::string& path, int depth) {
    const int32_t rule = builder_.declare_rule();
    define(rule, schema, path, depth);
    return rule;
  }

  void define(int32_t rule, const Json& schema, const std::string& path, int depth) {
    const Place done = builder_.done();
    builder_.define_rule(rule, done);
    if (depth > kMaxDepth || builder_.size() > kMaxInstructions) fail(path, "the schema is too large");
    if (status_.ok()) builder_.define_rule(rule, schema_place(schema, path, depth, done));
  }

  Place schema_place(const Json& schema, const std::string& path, int depth, Place next) {
    if (schema.is_boolean() && schema.get<bool>()) return builder_.call(rules_.value, next);
    if (!schema.is_object()) {
      fail(path, "a schema must be an object");
      return next;
    }
    if (schema.contains("$ref")) return reference(schema, path, depth, next);
    if (schema.contains("const")) {
      check_keywords(schema, path, {"const", "type"});
      return builder_.literal(text_of(schema["const"]), next);
    }
    if (schema.contains("enum")) return enumeration(schema, path, next);
    for (const char* keyword : {"anyOf", "allOf"})
      if (schema.contains(keyword)) return combination(schema, keyword, path, depth, next);
    const auto type = schema.find("type");
    if (type == schema.end()) {
      if (schema.contains("properties")) return object(schema, path, depth, next);
      check_keywords(schema, path, {});
      return builder_.call(rules_.value, next);
    }
    if (type->is_string()) return typed(schema, type->get<std::string>(), path, depth, next);
    std::vector<Place> places;
    if (type->is_array())
      for (const Json& item : *type)
        if (item.is_string()) places.push_back(typed(schema, item.get<std::string>(), path, depth, next));
    if (places.empty()) fail(path, "'type' must be a string or an array of strings");
    return builder_.any_of(places);
  }

  static std::string text_of(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

  Place reference(const Json& schema, const std::string& path, int depth, Place next) {
    check_keywords(schema, path, {"$ref"});
    const Json& target = schema["$ref"];
    const std::string name = target.is_string() ? target.get<std::string>() : std::string();
    if (const auto known = references_.find(name); known != references_.end())
      return builder_.call(known->second, next);
    const Json* found = nullptr;
    if (name == "#") found = &root_;
    for (const std::string_view folder : {"$defs", "definitions"}) {
      const std::string prefix = fmt::format("#/{}/", folder);
      if (!name.starts_with(prefix) || !root_.is_object() || !root_.contains(folder)) continue;
      const Json& all = root_[std::string(folder)];
      const auto at = all.is_object() ? all.find(name.substr(prefix.size())) : all.end();
      if (at != all.end()) found = &*at;
    }
    if (found == nullptr) {
      fail(path, fmt::format("'$ref' to '{}' leads nowhere; '#', '#/$defs/NAME' and '#/definitions/NAME' are supported",
                             name.substr(0, 80)));
      return next;
    }
    const int32_t rule = builder_.declare_rule();
    references_.emplace(name, rule);
    define(rule, *found, name, depth + 1);
    return builder_.call(rule, next);
  }

  Place enumeration(const Json& schema, const std::string& path, Place next) {
    check_keywords(schema, path, {"enum", "type"});
    const Json& values = schema["enum"];
    if (!values.is_array() || values.empty()) fail(path, "'enum' must be an array that is not empty");
    std::vector<Place> places;
    for (const Json& value : values) places.push_back(builder_.literal(text_of(value), next));
    return builder_.any_of(places);
  }

  Place combination(const Json& schema, const std::string& keyword, const std::string& path, int depth, Place next) {
    check_keywords(schema, path, {keyword});
    const Json& parts = schema[keyword];
    if (!parts.is_array() || parts.empty()) {
      fail(path, fmt::format("'{}' must be an array that is not empty", keyword));
      return next;
    }
    if (keyword == "allOf" && parts.size() > 1) fail(path, "'allOf' of more than one schema is not supported");
    std::vector<Place> places;
    for (size_t i = 0; i < parts.size(); ++i)
      places.push_back(builder_.call(rule_for(parts[i], fmt::format("{}/{}/{}", path, keyword, i), depth + 1), next));
    return builder_.any_of(places);
  }

  Place typed(const Json& schema, const std::string& type, const std::string& path, int depth, Place next) {
    if (type == "object") return object(schema, path, depth, next);
    if (type == "array") return array(schema, path, depth, next);
    if (type == "string") {
      check_keywords(schema, path, {"type", "minLength", "maxLength"});
      const auto [least, most] = counts(schema, path, "minLength", "maxLength");
      return builder_.literal("\"", builder_.repeat(rules_.character, least, most, builder_.literal("\"", next)));
    }
    check_keywords(schema, path, {"type"});
    if (type == "integer") return builder_.call(rules_.integer, next);
    if (type == "number") return builder_.call(rules_.number, next);
    if (type == "boolean") return builder_.either(builder_.literal("true", next), builder_.literal("false", next));
    if (type == "null") return builder_.literal("null", next);
    fail(path, fmt::format("there is no type '{}'", type.substr(0, 40)));
    return next;
  }

  /// Limits of a count; the second is -1 when there is none.
  std::pair<int64_t, int64_t> counts(const Json& schema, const std::string& path, const char* least, const char* most) {
    const auto read = [&](const char* keyword, int64_t fallback) -> int64_t {
      const auto found = schema.find(keyword);
      if (found == schema.end()) return fallback;
      const double value = found->is_number() ? found->get<double>() : -1.0;
      if (value >= 0 && value <= static_cast<double>(kMaxCount)) return static_cast<int64_t>(value);
      fail(path, fmt::format("'{}' must be from 0 to {}", keyword, kMaxCount));
      return fallback;
    };
    const int64_t low = read(least, 0);
    const int64_t high = read(most, -1);
    if (high >= 0 && high < low) fail(path, fmt::format("'{}' is below '{}'", most, least));
    return {low, std::max<int64_t>(high, high < 0 ? -1 : low)};
  }

  Place object(const Json& schema, const std::string& path, int depth, Place next) {
    check_keywords(schema, path, {"type", "properties", "required", "additionalProperties"});
    std::set<std::string> required;
    if (const auto names = schema.find("required"); names != schema.end() && names->is_array())
      for (const Json& name : *names)
        if (name.is_string()) required.insert(name.get<std::string>());
    const auto properties = schema.find("properties");
    const bool has_properties = properties != schema.end() && properties->is_object() && !properties->empty();
    if (!has_properties) {
      if (!required.empty()) fail(path, "'required' names properties that 'properties' does not have");
      return map(schema, path, depth, next);
    }
    // From the last property to the first: what follows when none has been written yet, and when some has.
    const Place closing = builder_.literal("}", next);
    Place fresh = closing;
    Place begun = builder_.call(rules_.space, closing);
    std::vector<std::pair<std::string, const Json*>> all;
    for (const auto& [name, value] : properties->items()) all.emplace_back(name, &value);
    for (size_t i = all.size(); i-- > 0;) {
      const auto& [name, value] = all[i];
      const int32_t rule = rule_for(*value, path + "/" + name, depth + 1);
      const bool needed = required.erase(name) > 0;
      const std::string key = text_of(Json(name)) + ":";
      const Place pair = builder_.literal(key, builder_.call(rules_.space, builder_.call(rule, begun)));
      const Place later = builder_.literal(",", builder_.call(rules_.space, pair));
      fresh = needed ? pair : builder_.either(pair, fresh);
      begun = needed ? later : builder_.either(later, begun);
    }
    if (!required.empty()) fail(path, "'required' names properties that 'properties' does not have");
    return builder_.literal("{", builder_.call(rules_.space, fresh));
  }

  /// An object whose names are free.
  Place map(const Json& schema, const std::string& path, int depth, Place next) {
    const auto additional = schema.find("additionalProperties");
    if (additional == schema.end() || *additional == true) return builder_.call(rules_.object, next);
    if (*additional == false) return builder_.literal("{}", next);
    const int32_t rule = rule_for(*additional, path + "/additionalProperties", depth + 1);
    const int32_t pair = builder_.declare_rule();
    builder_.define_rule(
        pair, builder_.call(rules_.string,
                            builder_.literal(":", builder_.call(rules_.space, builder_.call(rule, builder_.done())))));
    return list("{", pair, 0, -1, "}", next);
  }

  Place array(const Json& schema, const std::string& path, int depth, Place next) {
    check_keywords(schema, path, {"type", "items", "minItems", "maxItems"});
    const auto [least, most] = counts(schema, path, "minItems", "maxItems");
    const auto items = schema.find("items");
    const int32_t rule = items == schema.end() ? rules_.value : rule_for(*items, path + "/items", depth + 1);
    return list("[", rule, least, most, "]", next);
  }

  /// open [ item { ',' item } ] close
  Place list(std::string_view open, int32_t item, int64_t least, int64_t most, std::string_view close, Place next) {
    const Place closing = builder_.literal(close, next);
    if (most == 0) return builder_.literal(open, closing);
    const int32_t further = builder_.declare_rule();
    builder_.define_rule(further,
                         builder_.literal(",", builder_.call(rules_.space, builder_.call(item, builder_.done()))));
    const Place rest = builder_.repeat(further, std::max<int64_t>(0, least - 1), most < 0 ? -1 : most - 1,
                                       builder_.call(rules_.space, closing));
    const Place first = builder_.call(item, rest);
    return builder_.literal(open, builder_.call(rules_.space, least > 0 ? first : builder_.either(first, closing)));
  }

  const Json& root_;
  ProgramBuilder builder_;
  JsonRules rules_;
  std::map<std::string, int32_t> references_;
  Status status_;
};

}  // namespace

Result<ByteProgram> compile_answer_shape(const AnswerShape& shape) {
  Json schema = {{"type", "object"}};
  if (shape.kind == AnswerShape::Kind::kJsonSchema) {
    schema = Json::parse(shape.schema, nullptr, false);
    if (schema.is_discarded()) return failure(StatusCode::kInvalidArgument, "the JSON schema is no JSON");
  }
  SchemaCompiler compiler(schema);
  ByteProgram program = compiler.compile(shape.before, shape.after);
  if (!compiler.status().ok()) return failure(compiler.status());
  return program;
}

}  // namespace kvant::engine
