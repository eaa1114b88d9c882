#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "engine/tokenizer/jinja_evaluator.h"

namespace kvant::engine::jinja {

namespace {

using Kind = Expression::Kind;

std::optional<int64_t> integer_of(const Value& value) {
  if (const auto* b = std::get_if<bool>(&value)) return *b ? 1 : 0;
  if (const auto* i = std::get_if<int64_t>(&value)) return *i;
  return std::nullopt;
}

std::optional<double> number_of(const Value& value) {
  if (const auto* d = std::get_if<double>(&value)) return *d;
  if (const auto i = integer_of(value)) return static_cast<double>(*i);
  return std::nullopt;
}

/// Where each character begins, and the end.
std::vector<size_t> character_starts(const Text& text) {
  std::vector<size_t> starts;
  for (size_t at = 0; at < text.size(); ++at) {
    if ((static_cast<unsigned char>(text.bytes[at]) & 0xC0) != 0x80) starts.push_back(at);
  }
  if (starts.empty() || starts[0] != 0) starts.insert(starts.begin(), 0);
  starts.push_back(text.size());
  return starts;
}

std::string_view symbol(Operator op) {
  switch (op) {
    case Operator::kAdd: return "+";
    case Operator::kSubtract: return "-";
    case Operator::kMultiply: return "*";
    case Operator::kDivide: return "/";
    case Operator::kFloorDivide: return "//";
    case Operator::kModulo: return "%";
    case Operator::kPower: return "**";
    case Operator::kConcatenate: return "~";
    case Operator::kEqual: return "==";
    case Operator::kNotEqual: return "!=";
    case Operator::kLess: return "<";
    case Operator::kLessEqual: return "<=";
    case Operator::kGreater: return ">";
    case Operator::kGreaterEqual: return ">=";
    case Operator::kIn: return "in";
    case Operator::kNotIn: return "not in";
  }
  return "?";
}

/// Nothing on overflow; the divisor is not zero.
std::optional<int64_t> integer_arithmetic(Operator op, int64_t a, int64_t b) {
  int64_t out = 0;
  const bool overflows_division = a == std::numeric_limits<int64_t>::min() && b == -1;
  switch (op) {
    case Operator::kAdd: return __builtin_add_overflow(a, b, &out) ? std::nullopt : std::optional(out);
    case Operator::kSubtract: return __builtin_sub_overflow(a, b, &out) ? std::nullopt : std::optional(out);
    case Operator::kMultiply: return __builtin_mul_overflow(a, b, &out) ? std::nullopt : std::optional(out);
    case Operator::kFloorDivide:
      if (overflows_division) return std::nullopt;
      return a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
    case Operator::kModulo: {
      if (overflows_division) return 0;
      const int64_t rest = a % b;
      return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
    }
    default: return std::nullopt;
  }
}

}  // namespace

Value Evaluator::evaluate(const Expression& expression) {
  if (failed() || !spend(1)) return Undefined{};
  if (++depth_ > kMaxDepth) {
    --depth_;
    return fail("expressions and calls are nested too deeply");
  }
  line_ = expression.line;
  Value value = evaluate_inner(expression);
  --depth_;
  if (failed()) return Undefined{};
  return value;
}

Value Evaluator::evaluate_inner(const Expression& expression) {
  const auto& operands = expression.operands;
  switch (expression.kind) {
    case Kind::kConstant: return expression.constant;
    case Kind::kName: {
      const Value* found = find_variable(expression.name);
      if (found != nullptr) return *found;
      if (find_entry(LibraryKind::kFunction, expression.name) != nullptr) return Function{expression.name};
      return Undefined{expression.name};
    }
    case Kind::kList:
    case Kind::kTuple: {
      std::vector<Value> items;
      for (const auto& operand : operands) items.push_back(evaluate(*operand));
      return list(std::move(items), expression.kind == Kind::kTuple);
    }
    case Kind::kDict: {
      std::vector<std::pair<Value, Value>> items;
      for (size_t i = 0; i + 1 < operands.size(); i += 2) {
        Value key = evaluate(*operands[i]);
        items.emplace_back(std::move(key), evaluate(*operands[i + 1]));
      }
      return failed() ? Value() : dict(std::move(items));
    }
    case Kind::kAttribute: return attribute(evaluate(*operands[0]), expression.name);
    case Kind::kIndex: {
      const Value object = evaluate(*operands[0]);
      const Value key = evaluate(*operands[1]);
      return failed() ? Value() : index(object, key);
    }
    case Kind::kSlice: return slice(expression);
    case Kind::kCall:
      return find_entry(LibraryKind::kFunction, expression.name) != nullptr && find_variable(expression.name) == nullptr
                 ? call_function(expression)
                 : call_macro(expression);
    case Kind::kMethod: return call_method(expression);
    case Kind::kFilter: return call_filter(expression);
    case Kind::kTest: {
      const Value object = evaluate(*operands[0]);
      const Given given = arguments(expression, LibraryKind::kTest);
      return failed() ? Value() : Value(test(expression.name, object, given.empty() ? std::nullopt : given[0]));
    }
    case Kind::kNegate: {
      const Value value = evaluate(*operands[0]);
      return arithmetic(Operator::kSubtract, Value(int64_t{0}), value);
    }
    case Kind::kNot: return !truthy(evaluate(*operands[0]));
    case Kind::kBinary: {
      const Value a = evaluate(*operands[0]);
      const Value b = evaluate(*operands[1]);
      return failed() ? Value() : binary(expression.operators[0], a, b);
    }
    case Kind::kCompare: {
      Value left = evaluate(*operands[0]);
      for (size_t i = 0; i < expression.operators.size(); ++i) {
        Value right = evaluate(*operands[i + 1]);
        if (failed() || !compare(expression.operators[i], left, right)) return false;
        left = std::move(right);
      }
      return true;
    }
    case Kind::kAnd: {
      Value left = evaluate(*operands[0]);
      return truthy(left) ? evaluate(*operands[1]) : left;
    }
    case Kind::kOr: {
      Value left = evaluate(*operands[0]);
      return truthy(left) ? left : evaluate(*operands[1]);
    }
    case Kind::kConditional:
      if (truthy(evaluate(*operands[0]))) return evaluate(*operands[1]);
      return operands[2] == nullptr ? Value(Undefined{"inline if"}) : evaluate(*operands[2]);
  }
  return Undefined{};
}

Value Evaluator::binary(Operator op, const Value& a, const Value& b) {
  if (op == Operator::kConcatenate) {
    Text out;
    append(out, a);
    append(out, b);
    return text(std::move(out));
  }
  if (op == Operator::kAdd) return add(a, b);
  if (op == Operator::kMultiply) {
    const Text* repeated = as_text(a) != nullptr ? as_text(a) : as_text(b);
    const auto count = integer_of(as_text(a) != nullptr ? b : a);
    if (repeated != nullptr && count) {
      Text out;
      // Stops as soon as the budget for text is spent, so that no count can exhaust memory.
      for (int64_t i = 0; i < *count && static_cast<int64_t>(out.size()) <= text_left_ && spend(1); ++i)
        out.append(*repeated);
      return text(std::move(out));
    }
  }
  return arithmetic(op, a, b);
}

Value Evaluator::add(const Value& a, const Value& b) {
  const Text* left = as_text(a);
  const Text* right = as_text(b);
  if (left != nullptr && right != nullptr) {
    Text out = *left;
    out.append(*right);
    return text(std::move(out));
  }
  const auto* left_list = std::get_if<ListPtr>(&a);
  const auto* right_list = std::get_if<ListPtr>(&b);
  if (left_list != nullptr && right_list != nullptr && (*left_list)->is_tuple == (*right_list)->is_tuple) {
    if (!spend(static_cast<int64_t>((*left_list)->items.size()))) return Undefined{};
    std::vector<Value> items = (*left_list)->items;
    items.insert(items.end(), (*right_list)->items.begin(), (*right_list)->items.end());
    return list(std::move(items), (*left_list)->is_tuple);
  }
  return arithmetic(Operator::kAdd, a, b);
}

Value Evaluator::arithmetic(Operator op, const Value& a, const Value& b) {
  if (failed()) return Undefined{};
  for (const Value* value : {&a, &b}) {
    if (const auto* undefined = std::get_if<Undefined>(value))
      return fail(fmt::format("'{}' is undefined", undefined->name));
  }
  const auto x = number_of(a);
  const auto y = number_of(b);
  if (!x || !y) return fail(fmt::format("'{}' does not apply to {} and {}", symbol(op), type_name(a), type_name(b)));
  const bool divides = op == Operator::kDivide || op == Operator::kFloorDivide || op == Operator::kModulo;
  if (divides && *y == 0) return fail("division by zero");
  const auto i = integer_of(a);
  const auto j = integer_of(b);
  if (i && j && op != Operator::kDivide) {
    std::optional<int64_t> result;
    if (op == Operator::kPower) {
      if (*j < 0) return std::pow(*x, *y);
      result = 1;
      for (int64_t k = 0; result && k < *j && k < 64; ++k)
        result = integer_arithmetic(Operator::kMultiply, *result, *i);
      if (*j >= 64 && (*i < -1 || *i > 1)) result.reset();
      if (*j >= 64 && *i == -1) result = *j % 2 == 0 ? 1 : -1;
    } else {
      result = integer_arithmetic(op, *i, *j);
    }
    if (!result) return fail(fmt::format("'{}' overflows 64-bit integers", symbol(op)));
    return *result;
  }
  switch (op) {
    case Operator::kAdd: return *x + *y;
    case Operator::kSubtract: return *x - *y;
    case Operator::kMultiply: return *x * *y;
    case Operator::kDivide: return *x / *y;
    case Operator::kFloorDivide: return std::floor(*x / *y);
    case Operator::kModulo: return *x - *y * std::floor(*x / *y);
    case Operator::kPower: return std::pow(*x, *y);
    default: return fail(fmt::format("'{}' is no arithmetic operator", symbol(op)));
  }
}

bool Evaluator::compare(Operator op, const Value& a, const Value& b) {
  if (!spend(weight_of(a))) return false;
  if (op == Operator::kEqual) return equal(a, b);
  if (op == Operator::kNotEqual) return !equal(a, b);
  if (op == Operator::kIn) return contains(b, a);
  if (op == Operator::kNotIn) return !contains(b, a);
  const auto result = order(a, b);
  if (!result) {
    fail(fmt::format("'{}' does not apply to {} and {}", symbol(op), type_name(a), type_name(b)));
    return false;
  }
  switch (op) {
    case Operator::kLess: return *result < 0;
    case Operator::kLessEqual: return *result <= 0;
    case Operator::kGreater: return *result > 0;
    default: return *result >= 0;
  }
}

bool Evaluator::contains(const Value& container, const Value& item) {
  if (std::holds_alternative<Undefined>(container)) return false;
  if (const Text* text = as_text(container)) {
    const Text* part = as_text(item);
    if (part != nullptr) return text->bytes.find(part->bytes) != std::string::npos;
    fail(fmt::format("'in' needs a string on the left of a string, not {}", type_name(item)));
    return false;
  }
  if (const auto* list = std::get_if<ListPtr>(&container)) {
    const auto& items = (*list)->items;
    if (!spend(weight_of(container))) return false;
    return std::any_of(items.begin(), items.end(), [&](const Value& other) { return equal(other, item); });
  }
  if (const auto* dict = std::get_if<DictPtr>(&container)) {
    const auto& items = (*dict)->items;
    if (!spend(weight_of(container))) return false;
    return std::any_of(items.begin(), items.end(), [&](const auto& other) { return equal(other.first, item); });
  }
  fail(fmt::format("'in' needs a string, list or mapping on the right, not {}", type_name(container)));
  return false;
}

Value Evaluator::attribute(const Value& object, std::string_view name) {
  if (failed()) return Undefined{};
  if (const auto* undefined = std::get_if<Undefined>(&object))
    return fail(fmt::format("'{}' is undefined", undefined->name));
  if (const auto* dict = std::get_if<DictPtr>(&object)) {
    if (const Value* found = (*dict)->find(name)) return *found;
  } else if (const auto* space = std::get_if<Namespace*>(&object)) {
    const auto found = (*space)->fields.find(name);
    if (found != (*space)->fields.end()) return found->second;
  } else if (const auto* loop = std::get_if<LoopPtr>(&object)) {
    return loop_field(**loop, name);
  }
  return Undefined{std::string(name)};
}

Value Evaluator::loop_field(const Loop& loop, std::string_view name) {
  const auto& items = loop.items->items;
  const auto size = static_cast<int64_t>(items.size());
  const auto at = static_cast<int64_t>(loop.index);
  if (name == "index") return at + 1;
  if (name == "index0") return at;
  if (name == "revindex") return size - at;
  if (name == "revindex0") return size - at - 1;
  if (name == "first") return at == 0;
  if (name == "last") return at + 1 == size;
  if (name == "length") return size;
  if (name == "depth") return loop.nesting;
  if (name == "depth0") return loop.nesting - 1;
  if (name == "previtem" && at > 0) return items[loop.index - 1];
  if (name == "nextitem" && at + 1 < size) return items[loop.index + 1];
  return Undefined{std::string(name)};
}

Value Evaluator::index(const Value& object, const Value& key) {
  if (const auto* undefined = std::get_if<Undefined>(&object))
    return fail(fmt::format("'{}' is undefined", undefined->name));
  if (const auto* dict = std::get_if<DictPtr>(&object)) {
    if (!spend(static_cast<int64_t>((*dict)->items.size() / 16))) return Undefined{};
    for (const auto& [name, value] : (*dict)->items) {
      if (equal(name, key)) return value;
    }
    return Undefined{as_text(key) != nullptr ? as_text(key)->bytes : "item"};
  }
  const auto position = integer_of(key);
  const Text* characters = as_text(object);
  const auto* items = std::get_if<ListPtr>(&object);
  if (position && (items != nullptr || characters != nullptr)) {
    const auto starts = characters != nullptr ? character_starts(*characters) : std::vector<size_t>();
    const auto size = static_cast<int64_t>(characters != nullptr ? starts.size() - 1 : (*items)->items.size());
    const int64_t at = *position < 0 ? *position + size : *position;
    if (at < 0 || at >= size || !spend(size / 64)) return Undefined{fmt::format("item {}", *position)};
    if (items != nullptr) return (*items)->items[static_cast<size_t>(at)];
    return text(characters->slice(starts[at], starts[at + 1] - starts[at]));
  }
  if (const Text* name = as_text(key)) return attribute(object, name->bytes);
  return Undefined{"item"};
}

Value Evaluator::slice(const Expression& expression) {
  const Value object = evaluate(*expression.operands[0]);
  std::optional<int64_t> bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    if (expression.operands[i + 1] == nullptr) continue;
    const Value value = evaluate(*expression.operands[i + 1]);
    if (std::holds_alternative<None>(value)) continue;
    bounds[i] = integer_of(value);
    if (!bounds[i]) return fail(fmt::format("a slice needs integers, not {}", type_name(value)));
  }
  if (const auto* undefined = std::get_if<Undefined>(&object))
    return fail(fmt::format("'{}' is undefined", undefined->name));
  const Text* characters = as_text(object);
  const auto* source = std::get_if<ListPtr>(&object);
  if (failed()) return Undefined{};
  if (characters == nullptr && source == nullptr) return fail(fmt::format("a {} cannot be sliced", type_name(object)));
  const auto starts = characters != nullptr ? character_starts(*characters) : std::vector<size_t>();
  const auto size = static_cast<int64_t>(characters != nullptr ? starts.size() - 1 : (*source)->items.size());
  if (!spend(size / 64)) return Undefined{};
  const int64_t step = bounds[2].value_or(1);
  if (step == 0) return fail("a slice's step is zero");
  const auto clamped = [&](std::optional<int64_t> bound, int64_t otherwise) {
    if (!bound) return otherwise;
    const int64_t at = *bound < 0 ? *bound + size : *bound;
    return std::clamp<int64_t>(at, step < 0 ? -1 : 0, step < 0 ? size - 1 : size);
  };
  const int64_t first = clamped(bounds[0], step < 0 ? size - 1 : 0);
  const int64_t last = clamped(bounds[1], step < 0 ? -1 : size);
  const int64_t stride = std::clamp<int64_t>(step, -size - 1, size + 1);
  Text out;
  std::vector<Value> chosen;
  if (characters != nullptr && step == 1)
    return text(first < last ? characters->slice(starts[first], starts[last] - starts[first]) : Text());
  for (int64_t at = first; step < 0 ? at > last : at < last; at += stride) {
    if (characters != nullptr) {
      out.append(characters->slice(starts[at], starts[at + 1] - starts[at]));
    } else {
      chosen.push_back((*source)->items[static_cast<size_t>(at)]);
    }
  }
  return characters != nullptr ? text(std::move(out)) : list(std::move(chosen), (*source)->is_tuple);
}

}  // namespace kvant::engine::jinja
