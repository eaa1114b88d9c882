#include "engine/tokenizer/jinja_value.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace kvant::engine::jinja {

namespace {

std::optional<double> number_of(const Value& value) {
  if (const auto* b = std::get_if<bool>(&value)) return *b ? 1.0 : 0.0;
  if (const auto* i = std::get_if<int64_t>(&value)) return static_cast<double>(*i);
  if (const auto* d = std::get_if<double>(&value)) return *d;
  return std::nullopt;
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

/// Python's repr of a string: single quotes unless that needs more escapes.
void append_quoted(Text& out, const Text& text) {
  const bool double_quotes = text.bytes.find('\'') != std::string::npos && text.bytes.find('"') == std::string::npos;
  const char quote = double_quotes ? '"' : '\'';
  out.append(std::string_view(&quote, 1));
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text.bytes[i];
    const char from = text.origin[i];
    if (c == '\n') {
      out.append("\\n", from);
    } else if (c == '\t') {
      out.append("\\t", from);
    } else if (c == '\r') {
      out.append("\\r", from);
    } else if (c == quote || c == '\\') {
      out.append(std::string{'\\', c}, from);
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      out.append(fmt::format("\\x{:02x}", c), from);
    } else {
      out.append(std::string_view(&c, 1), from);
    }
  }
  out.append(std::string_view(&quote, 1));
}

void append_repr(Text& out, const Value& value) {
  if (const Text* text = as_text(value)) return append_quoted(out, *text);
  append_str(out, value);
}

void append_json_string(Text& out, const Text& text) {
  out.append("\"");
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text.bytes[i];
    const char from = text.origin[i];
    switch (c) {
      case '"': out.append("\\\"", from); break;
      case '\\': out.append("\\\\", from); break;
      case '\n': out.append("\\n", from); break;
      case '\r': out.append("\\r", from); break;
      case '\t': out.append("\\t", from); break;
      case '\b': out.append("\\b", from); break;
      case '\f': out.append("\\f", from); break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out.append(fmt::format("\\u{:04x}", c), from);
        } else {
          out.append(std::string_view(&c, 1), from);
        }
    }
  }
  out.append("\"");
}

}  // namespace

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : items) {
    const Text* text = as_text(name);
    if (text != nullptr && text->bytes == key) return &value;
  }
  return nullptr;
}

Value make_text(Text text) { return std::make_shared<const Text>(std::move(text)); }
Value make_text(std::string_view text, char from) { return make_text(Text::of(text, from)); }

int depth_of(const Value& value) {
  if (const auto* list = std::get_if<ListPtr>(&value)) return (*list)->depth;
  if (const auto* dict = std::get_if<DictPtr>(&value)) return (*dict)->depth;
  return 0;
}

int64_t weight_of(const Value& value) {
  if (const Text* text = as_text(value)) return 1 + static_cast<int64_t>(text->size() / 8);
  if (const auto* list = std::get_if<ListPtr>(&value)) return (*list)->weight;
  if (const auto* dict = std::get_if<DictPtr>(&value)) return (*dict)->weight;
  return 1;
}

void List::measure() {
  depth = 1;
  weight = 1;
  for (const Value& item : items) {
    depth = std::max(depth, depth_of(item) + 1);
    weight += weight_of(item);
  }
}

void Dict::measure() {
  depth = 1;
  weight = 1;
  for (const auto& [key, value] : items) {
    depth = std::max(depth, depth_of(value) + 1);
    weight += weight_of(key) + weight_of(value);
  }
}

const Text* as_text(const Value& value) {
  const auto* text = std::get_if<TextPtr>(&value);
  return text == nullptr ? nullptr : text->get();
}

bool truthy(const Value& value) {
  if (std::holds_alternative<Undefined>(value) || std::holds_alternative<None>(value)) return false;
  if (const auto number = number_of(value)) return *number != 0;
  if (const Text* text = as_text(value)) return text->size() != 0;
  if (const auto* list = std::get_if<ListPtr>(&value)) return !(*list)->items.empty();
  if (const auto* dict = std::get_if<DictPtr>(&value)) return !(*dict)->items.empty();
  return true;
}

bool equal(const Value& a, const Value& b) {
  const auto* integer_a = std::get_if<int64_t>(&a);
  const auto* integer_b = std::get_if<int64_t>(&b);
  if (integer_a != nullptr && integer_b != nullptr) return *integer_a == *integer_b;
  const auto number_a = number_of(a);
  const auto number_b = number_of(b);
  if (number_a || number_b) return number_a && number_b && *number_a == *number_b;
  if (a.index() != b.index()) return false;
  if (std::holds_alternative<Undefined>(a) || std::holds_alternative<None>(a)) return true;
  if (const Text* text = as_text(a)) return text->bytes == as_text(b)->bytes;
  if (const auto* list = std::get_if<ListPtr>(&a)) {
    const List& left = **list;
    const List& right = *std::get<ListPtr>(b);
    return left.is_tuple == right.is_tuple &&
           std::equal(left.items.begin(), left.items.end(), right.items.begin(), right.items.end(), equal);
  }
  if (const auto* dict = std::get_if<DictPtr>(&a)) {
    const Dict& left = **dict;
    const Dict& right = *std::get<DictPtr>(b);
    return left.items.size() == right.items.size() &&
           std::equal(left.items.begin(), left.items.end(), right.items.begin(), [](const auto& x, const auto& y) {
             return equal(x.first, y.first) && equal(x.second, y.second);
           });
  }
  if (const auto* space = std::get_if<Namespace*>(&a)) return *space == std::get<Namespace*>(b);
  if (const auto* loop = std::get_if<LoopPtr>(&a)) return *loop == std::get<LoopPtr>(b);
  return std::get<Function>(a).name == std::get<Function>(b).name;
}

std::optional<int> order(const Value& a, const Value& b) {
  const auto* integer_a = std::get_if<int64_t>(&a);
  const auto* integer_b = std::get_if<int64_t>(&b);
  if (integer_a != nullptr && integer_b != nullptr) return (*integer_a > *integer_b) - (*integer_a < *integer_b);
  const auto number_a = number_of(a);
  const auto number_b = number_of(b);
  if (number_a && number_b) return (*number_a > *number_b) - (*number_a < *number_b);
  const Text* text_a = as_text(a);
  const Text* text_b = as_text(b);
  // Byte order of UTF-8 is code point order.
  if (text_a != nullptr && text_b != nullptr) return text_a->bytes.compare(text_b->bytes);
  return std::nullopt;
}

std::string_view type_name(const Value& value) {
  static constexpr std::string_view kNames[] = {"undefined", "none",    "boolean",   "integer", "float",   "string",
                                                "list",      "mapping", "namespace", "loop",    "function"};
  return kNames[value.index()];
}

void append_str(Text& out, const Value& value) {
  if (std::holds_alternative<Undefined>(value)) return;
  if (std::holds_alternative<None>(value)) return out.append("None");
  if (const auto* b = std::get_if<bool>(&value)) return out.append(*b ? "True" : "False");
  if (const auto* i = std::get_if<int64_t>(&value)) return out.append(fmt::format("{}", *i));
  if (const auto* d = std::get_if<double>(&value)) return out.append(float_text(*d));
  if (const Text* text = as_text(value)) return out.append(*text);
  if (const auto* list = std::get_if<ListPtr>(&value)) {
    const bool tuple = (*list)->is_tuple;
    const auto& items = (*list)->items;
    out.append(tuple ? "(" : "[");
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out.append(", ");
      append_repr(out, items[i]);
    }
    out.append(tuple ? (items.size() == 1 ? ",)" : ")") : "]");
    return;
  }
  if (const auto* dict = std::get_if<DictPtr>(&value)) {
    out.append("{");
    bool first = true;
    for (const auto& [key, item] : (*dict)->items) {
      if (!first) out.append(", ");
      first = false;
      append_repr(out, key);
      out.append(": ");
      append_repr(out, item);
    }
    return out.append("}");
  }
  out.append(fmt::format("<{}>", type_name(value)));
}

bool append_json(Text& out, const Value& value, const JsonStyle& style, int level) {
  const auto new_line = [&](int depth) {
    if (style.indent > 0) out.append(fmt::format("\n{:{}}", "", style.indent * depth));
  };
  if (std::holds_alternative<None>(value)) {
    out.append("null");
  } else if (const auto* b = std::get_if<bool>(&value)) {
    out.append(*b ? "true" : "false");
  } else if (const auto* d = std::get_if<double>(&value)) {
    out.append(std::isnan(*d) ? "NaN" : std::isinf(*d) ? (*d < 0 ? "-Infinity" : "Infinity") : float_text(*d));
  } else if (std::holds_alternative<int64_t>(value)) {
    append_str(out, value);
  } else if (const Text* text = as_text(value)) {
    append_json_string(out, *text);
  } else if (const auto* list = std::get_if<ListPtr>(&value)) {
    const auto& items = (*list)->items;
    out.append("[");
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out.append(style.comma);
      new_line(level + 1);
      if (!append_json(out, items[i], style, level + 1)) return false;
    }
    if (!items.empty()) new_line(level);
    out.append("]");
  } else if (const auto* dict = std::get_if<DictPtr>(&value)) {
    const auto& items = (*dict)->items;
    out.append("{");
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out.append(style.comma);
      new_line(level + 1);
      Text key;
      append_str(key, items[i].first);
      append_json_string(out, key);
      out.append(style.colon);
      if (!append_json(out, items[i].second, style, level + 1)) return false;
    }
    if (!items.empty()) new_line(level);
    out.append("}");
  } else {
    return false;
  }
  return true;
}

}  // namespace kvant::engine::jinja
