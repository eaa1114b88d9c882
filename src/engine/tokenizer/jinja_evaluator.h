#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/jinja_ast.h"
#include "engine/tokenizer/jinja_library.h"
#include "engine/tokenizer/jinja_renderer.h"

namespace kvant::engine::jinja {

/// Runs one template once. After the first error every evaluation gives Undefined and every block ends.
class Evaluator {
 public:
  Evaluator(const Block& root, const RenderInput& input);
  Result<Text> run();

 private:
  /// Nested evaluations and blocks, macro calls included: bounds the stack.
  static constexpr int kMaxDepth = 400;

  enum class Flow : unsigned char { kNormal, kBreak, kContinue };
  using Scope = std::map<std::string, Value, std::less<>>;
  /// Evaluated arguments of a library entry by position; nullopt where none was given.
  using Given = std::vector<std::optional<Value>>;

  // jinja_evaluator.cc
  bool failed() const { return !error_.ok(); }
  Value fail(std::string_view what);
  bool spend(int64_t steps);
  Value text(Text value);
  Value list(std::vector<Value> items, bool is_tuple = false);
  Value dict(std::vector<std::pair<Value, Value>> items);
  bool accept(int depth, int64_t weight);
  /// append_str, paid for.
  void append(Text& out, const Value& value);
  void write(Text& out, const Text& piece);
  Flow execute(const Block& block, Text& out);
  Flow execute(const Statement& statement, Text& out);
  Flow execute_if(const Statement& statement, Text& out);
  Flow execute_for(const Statement& statement, Text& out);
  void execute_set(const Statement& statement);
  bool bind(const std::vector<std::string>& names, const Value& value, Scope& scope);
  Value call_macro(const Expression& call);
  const Value* find_variable(std::string_view name) const;
  std::optional<std::vector<Value>> elements(const Value& value);

  // jinja_expressions.cc
  Value evaluate(const Expression& expression);
  Value evaluate_inner(const Expression& expression);
  Value binary(Operator op, const Value& a, const Value& b);
  Value add(const Value& a, const Value& b);
  Value arithmetic(Operator op, const Value& a, const Value& b);
  bool compare(Operator op, const Value& a, const Value& b);
  bool contains(const Value& container, const Value& item);
  Value attribute(const Value& object, std::string_view name);
  Value loop_field(const Loop& loop, std::string_view name);
  Value index(const Value& object, const Value& key);
  Value slice(const Expression& expression);

  // jinja_calls.cc
  Given arguments(const Expression& call, LibraryKind kind);
  Value call_function(const Expression& call);
  Value call_method(const Expression& call);
  Value call_filter(const Expression& call);
  Value apply_filter(std::string_view name, const Value& object, const Given& given);
  Value select(const Value& object, const Given& given, bool by_attribute, bool keep);
  Value map_over(const Expression& call, const Value& object);
  Value to_json(const Value& object, const Given& given);
  Value sort(const Value& object, const Given& given);
  Value join(const Value& object, const Given& given);
  Value format(const Text& pattern, const Given& given);
  Value extreme(const std::vector<Value>& items, bool largest);
  Value replace(const Text& object, const Given& given);
  Value range(const Given& given);
  bool test(std::string_view name, const Value& object, const std::optional<Value>& argument);
  Value attribute_path(const Value& object, std::string_view path);
  int64_t integer_argument(const Given& given, size_t position, int64_t otherwise);
  /// Null, with an error, when the argument is there but is no text.
  const Text* text_argument(const Given& given, size_t position);

  const Block& root_;
  const RenderInput& input_;
  std::vector<Scope> scopes_;
  size_t first_visible_scope_ = 0;  ///< Inside a macro: its own scope; scope 0 is always visible.
  std::deque<Namespace> namespaces_;
  int64_t steps_left_;
  int64_t text_left_;
  int depth_ = 0;
  int line_ = 1;
  Status error_;
};

}  // namespace kvant::engine::jinja
