#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "engine/tokenizer/jinja_evaluator.h"

namespace kvant::engine::jinja {

namespace {

constexpr int64_t kMaxRange = 100'000;

/// Python's int() and float() of a text: surrounding space allowed, anything else around it not.
template <class Number>
std::optional<Number> parse_number(const Text& text) {
  const Text bare = strip(text, nullptr, true, true);
  const char* begin = bare.bytes.data();
  const char* end = begin + bare.bytes.size();
  if (begin != end && *begin == '+') ++begin;
  Number number{};
  const auto [stop, error] = std::from_chars(begin, end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

/// Whole numbers that int64 holds.
std::optional<int64_t> truncated(double value) {
  if (!(value > -9.2e18 && value < 9.2e18)) return std::nullopt;
  return static_cast<int64_t>(value);
}

}  // namespace

Evaluator::Given Evaluator::arguments(const Expression& call, LibraryKind kind) {
  const LibraryEntry& entry = *find_entry(kind, call.name);
  Given given;
  for (size_t i = 0; i < call.arguments.values.size() && !failed(); ++i) {
    const std::string& name = call.arguments.names[i];
    const size_t position = name.empty() ? i : static_cast<size_t>(keyword_position(entry, name));
    if (given.size() <= position) given.resize(position + 1);
    given[position] = evaluate(*call.arguments.values[i]);
  }
  return given;
}

int64_t Evaluator::integer_argument(const Given& given, size_t position, int64_t otherwise) {
  if (position >= given.size() || !given[position]) return otherwise;
  if (const auto* value = std::get_if<int64_t>(&*given[position])) return *value;
  if (const auto* value = std::get_if<bool>(&*given[position])) return *value ? 1 : 0;
  fail(fmt::format("needed an integer, found {}", type_name(*given[position])));
  return otherwise;
}

const Text* Evaluator::text_argument(const Given& given, size_t position) {
  if (position >= given.size() || !given[position] || std::holds_alternative<None>(*given[position])) return nullptr;
  const Text* value = as_text(*given[position]);
  if (value == nullptr) fail(fmt::format("needed a string, found {}", type_name(*given[position])));
  return value;
}

Value Evaluator::call_function(const Expression& call) {
  if (call.name == "namespace" || call.name == "dict") {
    std::vector<std::pair<Value, Value>> items;
    for (size_t i = 0; i < call.arguments.values.size(); ++i) {
      const std::string& name = call.arguments.names[i];
      const Value value = evaluate(*call.arguments.values[i]);
      if (failed()) return Undefined{};
      if (!name.empty()) {
        items.emplace_back(make_text(name), value);
      } else if (const auto* other = std::get_if<DictPtr>(&value)) {
        items.insert(items.end(), (*other)->items.begin(), (*other)->items.end());
      } else {
        return fail(fmt::format("{}() needs a mapping or names, not {}", call.name, type_name(value)));
      }
    }
    Value fields = dict(std::move(items));
    if (call.name == "dict" || failed()) return fields;
    Namespace& made = namespaces_.emplace_back();
    for (const auto& [key, value] : std::get<DictPtr>(fields)->items) {
      if (const Text* name = as_text(key)) made.fields.insert_or_assign(name->bytes, value);
    }
    return &made;
  }
  const Given given = arguments(call, LibraryKind::kFunction);
  if (failed()) return Undefined{};
  if (call.name == "range") return range(given);
  if (call.name == "raise_exception") {
    Text message;
    append(message, *given[0]);
    if (!failed()) error_ = Status(StatusCode::kInvalidArgument, fmt::format("chat template: {}", message.bytes));
    return Undefined{};
  }
  const Text* format = text_argument(given, 0);  // strftime_now
  if (format == nullptr) return fail("strftime_now() needs a format");
  char buffer[256];
  if (format->size() > 100) return fail("strftime_now(): the format is longer than 100 bytes");
  const size_t length = std::strftime(buffer, sizeof buffer, format->bytes.c_str(), &input_.now);
  return text(Text::of(std::string_view(buffer, length)));
}

Value Evaluator::range(const Given& given) {
  const bool one = given.size() == 1;
  const int64_t first = one ? 0 : integer_argument(given, 0, 0);
  const int64_t last = integer_argument(given, one ? 0 : 1, 0);
  const int64_t step = integer_argument(given, 2, 1);
  if (failed()) return Undefined{};
  if (step == 0) return fail("range() with a step of zero");
  std::vector<Value> items;
  for (int64_t at = first; step > 0 ? at < last : at > last;) {
    if (static_cast<int64_t>(items.size()) == kMaxRange)
      return fail(fmt::format("range() of more than {} numbers", kMaxRange));
    items.emplace_back(at);
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  return list(std::move(items));
}

Value Evaluator::call_method(const Expression& call) {
  const Value object = evaluate(*call.operands[0]);
  const Given given = arguments(call, LibraryKind::kMethod);
  if (failed()) return Undefined{};
  const std::string& name = call.name;
  if (const auto* undefined = std::get_if<Undefined>(&object))
    return fail(fmt::format("'{}' is undefined", undefined->name));
  if (const auto* loop = std::get_if<LoopPtr>(&object); loop != nullptr && name == "cycle") {
    return *given[(*loop)->index % given.size()];
  }
  if (const auto* source = std::get_if<DictPtr>(&object)) {
    if (name == "get") {
      for (const auto& [key, value] : (*source)->items) {
        if (equal(key, *given[0])) return value;
      }
      return given.size() > 1 ? *given[1] : Value(None{});
    }
    if (name == "items") return apply_filter("items", object, {});
    if (name == "keys") return list(elements(object).value_or(std::vector<Value>()));
    if (name == "values") {
      std::vector<Value> values;
      for (const auto& item : (*source)->items) values.push_back(item.second);
      return list(std::move(values));
    }
  }
  if (name == "append" || name == "pop")
    return fail(fmt::format("a {} cannot be changed ('{}'), as in Jinja's sandbox", type_name(object), name));
  const Text* subject = as_text(object);
  if (subject == nullptr) return fail(fmt::format("a {} has no method '{}'", type_name(object), name));
  if (name == "format") return format(*subject, given);
  if (name == "upper") return text(change_case(*subject, Case::kUpper));
  if (name == "lower") return text(change_case(*subject, Case::kLower));
  if (name == "title") return text(change_case(*subject, Case::kTitle));
  if (name == "capitalize") return text(change_case(*subject, Case::kCapitalize));
  if (name == "replace") return replace(*subject, given);
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const Text* characters = text_argument(given, 0);
    return failed() ? Value() : text(strip(*subject, characters, name != "rstrip", name != "lstrip"));
  }
  if (name == "startswith" || name == "endswith") {
    std::vector<Value> options = {*given[0]};
    if (const auto* tuple = std::get_if<ListPtr>(&options[0])) options = std::vector<Value>((*tuple)->items);
    for (const Value& option : options) {
      const Text* part = as_text(option);
      if (part == nullptr) return fail(fmt::format("'{}' needs a string, not {}", name, type_name(option)));
      if (name == "startswith" ? subject->bytes.starts_with(part->bytes) : subject->bytes.ends_with(part->bytes))
        return true;
    }
    return false;
  }
  if (name == "split") {
    const Text* separator = text_argument(given, 0);
    const int64_t limit = integer_argument(given, 1, -1);
    if (failed()) return Undefined{};
    if (separator != nullptr && separator->size() == 0) return fail("split() by an empty string");
    std::vector<Value> parts;
    for (Text& part : split(*subject, separator, limit)) parts.push_back(text(std::move(part)));
    return list(std::move(parts));
  }
  return fail(fmt::format("a string has no method '{}'", name));
}

/// Python's str.format with the fields {} and {0}; others are refused.
Value Evaluator::format(const Text& pattern, const Given& given) {
  Text out;
  size_t next = 0;
  for (size_t at = 0; at < pattern.size() && !failed() && static_cast<int64_t>(out.size()) <= text_left_;) {
    const char c = pattern.bytes[at];
    const bool doubled = at + 1 < pattern.size() && pattern.bytes[at + 1] == c;
    if (c != '{' && c != '}') {
      out.append(pattern.slice(at++, 1));
    } else if (doubled) {
      out.append(pattern.slice(at, 1));
      at += 2;
    } else {
      const size_t end = pattern.bytes.find('}', at);
      if (c == '}' || end == std::string::npos) return fail("format(): a single brace");
      const std::string_view field = std::string_view(pattern.bytes).substr(at + 1, end - at - 1);
      size_t position = next;
      const auto [stop, error] = std::from_chars(field.data(), field.data() + field.size(), position);
      if (!field.empty() && (error != std::errc() || stop != field.data() + field.size()))
        return fail(fmt::format("format(): the field '{{{}}}' is not supported", field));
      if (field.empty()) ++next;
      if (position >= given.size() || !given[position]) return fail("format(): more fields than arguments");
      append(out, *given[position]);
      at = end + 1;
    }
  }
  return failed() ? Value() : text(std::move(out));
}

/// The first of the smallest or largest items; case of letters does not count.
Value Evaluator::extreme(const std::vector<Value>& items, bool largest) {
  const auto key = [](const Value& value) {
    const Text* subject = as_text(value);
    return subject == nullptr ? value : make_text(change_case(*subject, Case::kLower));
  };
  if (items.empty()) return Undefined{"item"};
  size_t best = 0;
  for (size_t i = 1; i < items.size(); ++i) {
    const auto sign = order(key(items[i]), key(items[best]));
    if (!sign) return fail(fmt::format("{} and {} have no order", type_name(items[i]), type_name(items[best])));
    if (largest ? *sign > 0 : *sign < 0) best = i;
  }
  return items[best];
}

Value Evaluator::replace(const Text& object, const Given& given) {
  const Text* from = text_argument(given, 0);
  const Text* to = text_argument(given, 1);
  const int64_t count = integer_argument(given, 2, -1);
  if (failed()) return Undefined{};
  if (from == nullptr || to == nullptr || from->size() == 0)
    return fail("replace needs a string that is not empty and another one");
  // A short text can become a long one; find out before making it.
  const auto growth = static_cast<int64_t>(to->size()) - static_cast<int64_t>(from->size());
  int64_t found = 0;
  for (size_t at = object.bytes.find(from->bytes); at != std::string::npos;
       at = object.bytes.find(from->bytes, at + from->size()))
    ++found;
  if (growth > 0 && found > text_left_ / growth) {
    text_left_ = -1;
    return text({});
  }
  return text(replace_all(object, *from, *to, count));
}

Value Evaluator::call_filter(const Expression& call) {
  const Value object = evaluate(*call.operands[0]);
  if (failed()) return Undefined{};
  if (call.name == "map") return map_over(call, object);
  const Given given = arguments(call, LibraryKind::kFilter);
  return failed() ? Value() : apply_filter(call.name, object, given);
}

Value Evaluator::apply_filter(std::string_view name, const Value& object, const Given& given) {
  const auto as_str = [&] {
    Text out;
    append(out, object);
    return out;
  };
  if (name == "default" || name == "d") {
    const bool also_false = given.size() > 1 && given[1] && truthy(*given[1]);
    const bool missing = std::holds_alternative<Undefined>(object) || (also_false && !truthy(object));
    if (!missing) return object;
    return !given.empty() && given[0] ? *given[0] : make_text("");
  }
  if (name == "length" || name == "count") {
    if (const Text* subject = as_text(object)) return static_cast<int64_t>(count_characters(subject->bytes));
    const auto items = elements(object);
    return items ? Value(static_cast<int64_t>(items->size())) : Value();
  }
  if (name == "trim") {
    const Text* characters = text_argument(given, 0);
    return failed() ? Value() : text(strip(as_str(), characters, true, true));
  }
  if (name == "upper") return text(change_case(as_str(), Case::kUpper));
  if (name == "lower") return text(change_case(as_str(), Case::kLower));
  if (name == "capitalize") return text(change_case(as_str(), Case::kCapitalize));
  if (name == "string" || name == "safe") return text(as_str());
  if (name == "replace") return replace(as_str(), given);
  if (name == "tojson") return to_json(object, given);
  if (name == "indent") {
    const int64_t width = integer_argument(given, 0, 4);
    const bool first = given.size() > 1 && given[1] && truthy(*given[1]);
    const bool blank = given.size() > 2 && given[2] && truthy(*given[2]);
    if (failed() || width < 0 || width > 64) return fail("indent: the width must be 0 to 64");
    const Text padding = Text::of(std::string(static_cast<size_t>(width), ' '));
    const Text newline = Text::of("\n");
    const std::vector<Text> lines = split(as_str(), &newline, -1);
    Text out;
    for (size_t i = 0; i < lines.size(); ++i) {
      if (i > 0) out.append(newline);
      if (i == 0 ? first : (blank || lines[i].size() > 0)) out.append(padding);
      out.append(lines[i]);
    }
    return text(std::move(out));
  }
  if (name == "int") {
    if (const Text* subject = as_text(object)) {
      if (const auto whole = parse_number<int64_t>(*subject)) return *whole;
      if (const auto number = parse_number<double>(*subject)) return truncated(*number).value_or(0);
      return int64_t{0};
    }
    if (const auto* number = std::get_if<double>(&object)) return truncated(*number).value_or(0);
    if (const auto* b = std::get_if<bool>(&object)) return int64_t{*b};
    return std::holds_alternative<int64_t>(object) ? object : Value(int64_t{0});
  }
  if (name == "float") {
    if (const Text* subject = as_text(object)) return parse_number<double>(*subject).value_or(0.0);
    if (const auto* number = std::get_if<int64_t>(&object)) return static_cast<double>(*number);
    if (const auto* b = std::get_if<bool>(&object)) return *b ? 1.0 : 0.0;
    return std::holds_alternative<double>(object) ? object : Value(0.0);
  }
  if (name == "abs") {
    const auto sign = order(object, Value(int64_t{0}));
    if (!sign) return fail(fmt::format("abs of a {}", type_name(object)));
    return *sign < 0 ? arithmetic(Operator::kSubtract, Value(int64_t{0}), object) : object;
  }
  if (name == "items" || name == "dictsort") {
    if (std::holds_alternative<Undefined>(object)) return list({});
    const auto* source = std::get_if<DictPtr>(&object);
    if (source == nullptr) return fail(fmt::format("'{}' needs a mapping, not {}", name, type_name(object)));
    auto items = (*source)->items;
    if (name == "dictsort") {
      const auto key = [](const Value& value) {  // Case does not count.
        const Text* subject = as_text(value);
        return subject == nullptr ? std::string() : change_case(*subject, Case::kLower).bytes;
      };
      std::stable_sort(items.begin(), items.end(),
                       [&](const auto& a, const auto& b) { return key(a.first) < key(b.first); });
    }
    std::vector<Value> pairs;
    for (auto& [key, value] : items) pairs.push_back(list({key, value}, true));
    return failed() ? Value() : list(std::move(pairs));
  }
  if (name == "join") return join(object, given);
  if (name == "select" || name == "reject") return select(object, given, false, name == "select");
  if (name == "selectattr" || name == "rejectattr") return select(object, given, true, name == "selectattr");

  if (name == "sort") return sort(object, given);

  auto items = elements(object);  // first, last, list, reverse, unique
  if (!items) return Undefined{};
  if (name == "first") return items->empty() ? Value(Undefined{"first item"}) : items->front();
  if (name == "last") return items->empty() ? Value(Undefined{"last item"}) : items->back();
  if (name == "min" || name == "max") return extreme(*items, name == "max");
  if (name == "unique") {
    std::vector<Value> kept;
    for (Value& item : *items) {
      if (!spend(weight_of(item) * static_cast<int64_t>(kept.size() + 1))) return Undefined{};
      if (std::none_of(kept.begin(), kept.end(), [&](const Value& other) { return equal(other, item); }))
        kept.push_back(std::move(item));
    }
    return list(std::move(kept));
  }
  if (name == "reverse") std::reverse(items->begin(), items->end());
  if (name == "reverse" && as_text(object) != nullptr) return join(list(*std::move(items)), {});
  return list(*std::move(items));
}

Value Evaluator::to_json(const Value& object, const Given& given) {
  const auto set = [&](size_t position) {
    return position < given.size() && given[position] && truthy(*given[position]);
  };
  for (const auto& [position, name] : {std::pair(0, "ensure_ascii"), std::pair(3, "sort_keys")}) {
    if (set(static_cast<size_t>(position))) return fail(fmt::format("tojson with {}=true is not supported", name));
  }
  JsonStyle style;
  const int64_t indent = set(1) ? integer_argument(given, 1, 0) : 0;
  if (failed() || indent < 0 || indent > 16) return fail("tojson: the indent must be 0 to 16");
  style.indent = static_cast<int>(indent);
  if (indent > 0) style.comma.assign(1, ',');
  if (set(2)) {
    const auto separators = elements(*given[2]);
    if (!separators) return Undefined{};
    const Text* comma = separators->size() == 2 ? as_text((*separators)[0]) : nullptr;
    const Text* colon = separators->size() == 2 ? as_text((*separators)[1]) : nullptr;
    if (comma == nullptr || colon == nullptr) return fail("tojson: separators must be two strings");
    style.comma = comma->bytes;
    style.colon = colon->bytes;
  }
  Text out;
  if (!spend(weight_of(object))) return Undefined{};
  if (!append_json(out, object, style)) return fail(fmt::format("a {} has no JSON form", type_name(object)));
  return text(std::move(out));
}

Value Evaluator::sort(const Value& object, const Given& given) {
  auto items = elements(object);
  const bool backwards = !given.empty() && given[0] && truthy(*given[0]);
  const bool case_counts = given.size() > 1 && given[1] && truthy(*given[1]);
  const Text* path = text_argument(given, 2);
  if (!items || failed()) return Undefined{};
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : *items) {
    Value key = path == nullptr ? item : attribute_path(item, path->bytes);
    if (const Text* subject = as_text(key); subject != nullptr && !case_counts)
      key = text(change_case(*subject, Case::kLower));
    keyed.emplace_back(std::move(key), std::move(item));
  }
  // All keys must be comparable before std::sort may see them.
  for (const auto& item : keyed) {
    if (!order(item.first, keyed[0].first))
      return fail(fmt::format("sort: {} and {} have no order", type_name(item.first), type_name(keyed[0].first)));
  }
  if (failed() || !spend(static_cast<int64_t>(keyed.size()) * 16)) return Undefined{};
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return order(a.first, b.first).value_or(0) * (backwards ? -1 : 1) < 0;
  });
  for (size_t i = 0; i < keyed.size(); ++i) (*items)[i] = keyed[i].second;
  return list(*std::move(items));
}

Value Evaluator::join(const Value& object, const Given& given) {
  const auto items = elements(object);
  if (!items) return Undefined{};
  Text separator;
  if (!given.empty() && given[0]) append(separator, *given[0]);
  const Text* path = text_argument(given, 1);
  Text out;
  for (size_t i = 0; i < items->size() && !failed() && static_cast<int64_t>(out.size()) <= text_left_; ++i) {
    if (i > 0) out.append(separator);
    append(out, path == nullptr ? (*items)[i] : attribute_path((*items)[i], path->bytes));
  }
  return text(std::move(out));
}

Value Evaluator::attribute_path(const Value& object, std::string_view path) {
  Value value = object;
  while (!path.empty() && !failed()) {
    const size_t dot = path.find('.');
    value = attribute(value, path.substr(0, dot));
    path = dot == std::string_view::npos ? std::string_view() : path.substr(dot + 1);
  }
  return value;
}

Value Evaluator::select(const Value& object, const Given& given, bool by_attribute, bool keep) {
  const auto items = elements(truthy(object) ? object : Value(Undefined{}));
  if (!items) return Undefined{};
  const size_t test_position = by_attribute ? 1 : 0;
  const Text* path = by_attribute ? text_argument(given, 0) : nullptr;
  const Text* test_name = text_argument(given, test_position);
  if (by_attribute && path == nullptr) return fail("selectattr needs the name of an attribute");
  const std::optional<Value> argument = given.size() > test_position + 1 ? given[test_position + 1] : std::nullopt;
  if (test_name != nullptr) {
    const LibraryEntry* entry = find_entry(LibraryKind::kTest, test_name->bytes);
    if (entry == nullptr) return fail(fmt::format("test '{}' is not supported", test_name->bytes));
    if (entry->min_arguments != (argument ? 1 : 0))
      return fail(fmt::format("test '{}' needs {} arguments", entry->name, entry->min_arguments));
  }
  std::vector<Value> kept;
  for (const Value& item : *items) {
    const Value subject = path == nullptr ? item : attribute_path(item, path->bytes);
    const bool holds = test_name == nullptr ? truthy(subject) : test(test_name->bytes, subject, argument);
    if (failed()) return Undefined{};
    if (holds == keep) kept.push_back(item);
  }
  return list(std::move(kept));
}

Value Evaluator::map_over(const Expression& call, const Value& object) {
  const bool by_attribute = !call.arguments.names[0].empty();
  const Value argument = evaluate(*call.arguments.values[0]);
  const Text* name = as_text(argument);
  if (failed() || name == nullptr) return fail("map needs attribute='name' or the name of a filter");
  if (!by_attribute) {
    const LibraryEntry* entry = find_entry(LibraryKind::kFilter, name->bytes);
    if (entry == nullptr || entry->min_arguments > 0)
      return fail(fmt::format("map with filter '{}' is not supported", name->bytes));
  }
  const auto items = elements(truthy(object) ? object : Value(Undefined{}));
  if (!items) return Undefined{};
  std::vector<Value> mapped;
  for (const Value& item : *items) {
    mapped.push_back(by_attribute ? attribute_path(item, name->bytes) : apply_filter(name->bytes, item, {}));
    if (failed()) return Undefined{};
  }
  return list(std::move(mapped));
}

bool Evaluator::test(std::string_view name, const Value& object, const std::optional<Value>& argument) {
  const bool is_text = as_text(object) != nullptr;
  const bool is_list = std::holds_alternative<ListPtr>(object);
  const bool is_mapping = std::holds_alternative<DictPtr>(object);
  const bool is_bool = std::holds_alternative<bool>(object);
  const auto* integer = std::get_if<int64_t>(&object);
  const bool is_float = std::holds_alternative<double>(object);
  if (name == "defined") return !std::holds_alternative<Undefined>(object);
  if (name == "undefined") return std::holds_alternative<Undefined>(object);
  if (name == "none") return std::holds_alternative<None>(object);
  if (name == "string") return is_text;
  if (name == "mapping") return is_mapping;
  if (name == "iterable" || name == "sequence") {
    return is_text || is_list || is_mapping || std::holds_alternative<Undefined>(object);
  }
  if (name == "boolean") return is_bool;
  if (name == "true") return is_bool && truthy(object);
  if (name == "false") return is_bool && !truthy(object);
  if (name == "number") return integer != nullptr || is_float || is_bool;
  if (name == "integer") return integer != nullptr;
  if (name == "float") return is_float;
  if (name == "eq" || name == "equalto") return compare(Operator::kEqual, object, *argument);
  if (name == "ne") return compare(Operator::kNotEqual, object, *argument);
  if (name == "lt") return compare(Operator::kLess, object, *argument);
  if (name == "le") return compare(Operator::kLessEqual, object, *argument);
  if (name == "gt") return compare(Operator::kGreater, object, *argument);
  if (name == "ge") return compare(Operator::kGreaterEqual, object, *argument);
  if (name == "in") return contains(*argument, object);
  const int64_t divisor = name == "divisibleby" ? integer_argument({argument}, 0, 0) : 2;
  const Value rest = arithmetic(Operator::kModulo, object, Value(divisor));
  const bool divides = !truthy(rest);
  return name == "odd" ? !divides : divides;
}

}  // namespace kvant::engine::jinja
