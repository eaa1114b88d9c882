#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/jinja_value.h"
#include "kvant/core/status.h"

namespace kvant::engine::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

/// Call arguments; `names[i]` is empty for a positional one.
struct Arguments {
  std::vector<ExpressionPtr> values;
  std::vector<std::string> names;
};

enum class Operator : unsigned char {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kConcatenate,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};

struct Expression {
  enum class Kind : unsigned char {
    kConstant,
    kName,
    kList,         ///< operands: items
    kTuple,        ///< operands: items
    kDict,         ///< operands: key, value, key, value...
    kAttribute,    ///< operands: object; name
    kIndex,        ///< operands: object, index
    kSlice,        ///< operands: object, first, last, step (null when left out)
    kCall,         ///< name, arguments
    kMethod,       ///< operands: object; name, arguments
    kFilter,       ///< operands: object; name, arguments
    kTest,         ///< operands: object; name, arguments
    kNegate,       ///< operands: one
    kNot,          ///< operands: one
    kBinary,       ///< operands: two; operators: one
    kCompare,      ///< operands: n + 1; operators: n
    kAnd,          ///< operands: two
    kOr,           ///< operands: two
    kConditional,  ///< operands: condition, value, other (may be null)
  };
  Kind kind = Kind::kConstant;
  int line = 1;
  int depth = 1;
  std::string name;
  Value constant;
  std::vector<ExpressionPtr> operands;
  std::vector<Operator> operators;
  Arguments arguments;
};

using Block = std::vector<Statement>;

struct Statement {
  enum class Kind : unsigned char {
    kText,      ///< text
    kOutput,    ///< expressions: one
    kIf,        ///< expressions: conditions; blocks: one each, and one more for else
    kFor,       ///< names: targets; expressions: items, filter (may be null); blocks: body, else
    kSet,       ///< names: targets, or object and field of a namespace when `is_field`; expressions: one
    kSetBlock,  ///< names: target; blocks: body
    kMacro,     ///< text: name; names: parameters; expressions: defaults (null when there is none); blocks: body
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kText;
  int line = 1;
  bool is_field = false;
  std::string text;
  std::vector<std::string> names;
  std::vector<ExpressionPtr> expressions;
  std::vector<Block> blocks;
};

/// Parses; refuses by name and line what the interpreter does not have.
Result<Block> parse(std::string_view source);

}  // namespace kvant::engine::jinja
