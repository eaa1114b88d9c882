#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace kvant::engine::jinja {

/// Text that knows where each byte comes from, so that no operation can pass message text off as template text.
struct Text {
  std::string bytes;
  std::string origin;  ///< One flag per byte: kTemplate or kMessage.

  static constexpr char kTemplate = 't';
  static constexpr char kMessage = 'm';

  static Text of(std::string_view text, char from = kTemplate) {
    return {std::string(text), std::string(text.size(), from)};
  }
  size_t size() const { return bytes.size(); }
  void append(const Text& other) {
    bytes += other.bytes;
    origin += other.origin;
  }
  void append(std::string_view text, char from = kTemplate) {
    bytes += text;
    origin.append(text.size(), from);
  }
  Text slice(size_t begin, size_t length) const { return {bytes.substr(begin, length), origin.substr(begin, length)}; }
};

struct Undefined {
  std::string name;  ///< For messages.
};
struct None {};
struct List;
struct Dict;
struct Namespace;
struct Loop;
struct Statement;

/// Something that can be called by name: a macro or a built-in function.
struct Function {
  std::string name;
  const Statement* macro = nullptr;
};

// Values are shared between variables, lists and loops, and never change once made (a namespace belongs to the
// renderer).
using TextPtr = std::shared_ptr<const Text>;
using ListPtr = std::shared_ptr<const List>;
using DictPtr = std::shared_ptr<const Dict>;
using LoopPtr = std::shared_ptr<Loop>;
using Value =
    std::variant<Undefined, None, bool, int64_t, double, TextPtr, ListPtr, DictPtr, Namespace*, LoopPtr, Function>;

struct List {
  std::vector<Value> items;
  bool is_tuple = false;
  int depth = 1;
  int64_t weight = 1;

  void measure();  ///< Sets depth and weight from the items.
};

/// Keeps the order of insertion, as Python does.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  int depth = 1;
  int64_t weight = 1;

  void measure();
  const Value* find(std::string_view key) const;
};

struct Namespace {
  std::map<std::string, Value, std::less<>> fields;
};

/// The `loop` variable.
struct Loop {
  ListPtr items;
  size_t index = 0;
  int64_t nesting = 1;
};

Value make_text(Text text);
Value make_text(std::string_view text, char from = Text::kTemplate);
int depth_of(const Value& value);
/// About how much work it is to print or compare a value: items nested in one another count as often as they appear.
int64_t weight_of(const Value& value);
const Text* as_text(const Value& value);

bool truthy(const Value& value);
bool equal(const Value& a, const Value& b);
/// Order of two numbers or two texts; nothing when Python would refuse to compare them.
std::optional<int> order(const Value& a, const Value& b);
/// "string", "mapping", ... for messages.
std::string_view type_name(const Value& value);

/// Text as Python's str() gives it.
void append_str(Text& out, const Value& value);
struct JsonStyle {
  int indent = 0;  ///< 0: all on one line.
  std::string comma = ", ";
  std::string colon = ": ";
};

/// JSON as Python's json.dumps(ensure_ascii=False) gives it; false when the value has no JSON form.
bool append_json(Text& out, const Value& value, const JsonStyle& style, int level = 0);

// Text operations that follow Python's str and keep the origin of every byte.
bool is_python_space(uint32_t code_point);
size_t count_characters(std::string_view bytes);
Text strip(const Text& text, const Text* characters, bool left, bool right);
std::vector<Text> split(const Text& text, const Text* separator, int64_t max_splits);
Text replace_all(const Text& text, const Text& from, const Text& to, int64_t max_count);
enum class Case : unsigned char { kUpper, kLower, kCapitalize, kTitle };
Text change_case(const Text& text, Case to);

}  // namespace kvant::engine::jinja
