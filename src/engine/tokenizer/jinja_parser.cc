#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "engine/tokenizer/jinja_ast.h"
#include "engine/tokenizer/jinja_lexer.h"
#include "engine/tokenizer/jinja_library.h"

namespace kvant::engine::jinja {

namespace {

// Real templates stay below a tenth of these; they keep the recursion of parser and renderer far from the stack's end.
constexpr int kMaxExpressionDepth = 100;
constexpr int kMaxBlockDepth = 50;

using Kind = Expression::Kind;
using Statements = std::initializer_list<std::string_view>;

/// After the first error every token reads as the end, so that all loops finish.
class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {
    for (size_t i = 0; i + 2 < tokens_.size(); ++i) {
      if (tokens_[i].kind == TokenKind::kBlockBegin && tokens_[i + 1].text == "macro")
        macros_.insert(tokens_[i + 2].text);
    }
  }

  Result<Block> run() {
    Block block = statements({});
    if (!error_.ok()) return failure(error_);
    return block;
  }

 private:
  const Token& peek(size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  const Token& next() {
    const Token& token = peek();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool is_operator(std::string_view text) const { return peek().kind == TokenKind::kOperator && peek().text == text; }
  bool is_name(std::string_view text) const { return peek().kind == TokenKind::kName && peek().text == text; }
  bool take_operator(std::string_view text) { return is_operator(text) && (next(), true); }
  bool take_name(std::string_view text) { return is_name(text) && (next(), true); }

  void fail(StatusCode code, const std::string& what) {
    if (error_.ok()) error_ = Status(code, fmt::format("chat template, line {}: {}", peek().line, what));
    at_ = tokens_.size() - 1;
  }
  void fail(const std::string& what) { fail(StatusCode::kInvalidArgument, what); }
  void refuse(std::string_view kind, std::string_view name) {
    fail(StatusCode::kUnsupported, fmt::format("{} '{}' is not supported", kind, name));
  }
  std::string shown() const {
    switch (peek().kind) {
      case TokenKind::kText: return "text";
      case TokenKind::kOutputBegin: return "'{{'";
      case TokenKind::kOutputEnd: return "'}}'";
      case TokenKind::kBlockBegin: return "'{%'";
      case TokenKind::kBlockEnd: return "'%}'";
      case TokenKind::kEnd: return "the end of the template";
      case TokenKind::kString: return "a string";
      case TokenKind::kName:
      case TokenKind::kInteger:
      case TokenKind::kFloat:
      case TokenKind::kOperator: return fmt::format("'{}'", peek().text);
    }
    return "?";
  }
  void need_operator(std::string_view text) {
    if (!take_operator(text)) fail(fmt::format("needed '{}', found {}", text, shown()));
  }
  void need(TokenKind kind, std::string_view what) {
    if (peek().kind == kind) {
      next();
    } else {
      fail(fmt::format("needed {}, found {}", what, shown()));
    }
  }
  std::string need_identifier() {
    if (peek().kind != TokenKind::kName) {
      fail(fmt::format("needed a name, found {}", shown()));
      return {};
    }
    return next().text;
  }

  // ---- statements ----

  /// Up to a block tag whose keyword is one of `ends`; that keyword is left as the current token.
  Block statements(Statements ends) {
    Block block;
    if (++block_depth_ > kMaxBlockDepth) fail(fmt::format("blocks are nested deeper than {}", kMaxBlockDepth));
    while (peek().kind != TokenKind::kEnd) {
      if (peek().kind == TokenKind::kText) {
        Statement& text = block.emplace_back();
        text.line = peek().line;
        text.text = next().text;
      } else if (peek().kind == TokenKind::kOutputBegin) {
        next();
        Statement& output = add(block, Statement::Kind::kOutput);
        output.expressions.push_back(expression_list());
        need(TokenKind::kOutputEnd, "'}}'");
      } else {
        need(TokenKind::kBlockBegin, "'{%'");
        if (peek().kind == TokenKind::kName && std::find(ends.begin(), ends.end(), peek().text) != ends.end()) break;
        statement(block);
      }
    }
    if (peek().kind == TokenKind::kEnd && ends.size() > 0) fail(fmt::format("'{}' is missing", *(ends.end() - 1)));
    --block_depth_;
    return block;
  }

  Statement& add(Block& block, Statement::Kind kind) {
    Statement& statement = block.emplace_back();
    statement.kind = kind;
    statement.line = peek().line;
    return statement;
  }

  void end_block() { need(TokenKind::kBlockEnd, "'%}'"); }

  void statement(Block& block) {
    if (take_name("if")) return if_statement(add(block, Statement::Kind::kIf));
    if (take_name("for")) return for_statement(add(block, Statement::Kind::kFor));
    if (take_name("set")) return set_statement(block);
    if (take_name("macro")) return macro_statement(add(block, Statement::Kind::kMacro));
    if (is_name("break") || is_name("continue")) {
      if (loop_depth_ == 0) return fail(fmt::format("'{}' outside a loop", peek().text));
      add(block, is_name("break") ? Statement::Kind::kBreak : Statement::Kind::kContinue);
      next();
      return end_block();
    }
    if (take_name("generation")) {  // Marks what training masks keep; it renders as its body.
      end_block();
      Block body = statements({"endgeneration"});
      next();
      end_block();
      std::move(body.begin(), body.end(), std::back_inserter(block));
      return;
    }
    if (peek().kind != TokenKind::kName) return fail(fmt::format("needed a statement, found {}", shown()));
    static constexpr std::string_view kEnds[] = {"else",   "elif",     "endif",        "endfor",
                                                 "endset", "endmacro", "endgeneration"};
    if (std::find(std::begin(kEnds), std::end(kEnds), peek().text) != std::end(kEnds)) {
      return fail(fmt::format("'{}' without its beginning", peek().text));
    }
    refuse("statement", peek().text);
  }

  void if_statement(Statement& out) {
    while (true) {
      out.expressions.push_back(expression());
      end_block();
      out.blocks.push_back(statements({"elif", "else", "endif"}));
      if (!take_name("elif")) break;
    }
    if (take_name("else")) {
      end_block();
      out.blocks.push_back(statements({"endif"}));
    }
    next();
    end_block();
  }

  void for_statement(Statement& out) {
    out.names = targets();
    if (!take_name("in")) fail(fmt::format("needed 'in', found {}", shown()));
    out.expressions.push_back(or_expression());
    out.expressions.push_back(take_name("if") ? expression() : nullptr);
    if (is_name("recursive")) return refuse("loop modifier", "recursive");
    end_block();
    ++loop_depth_;
    out.blocks.push_back(statements({"else", "endfor"}));
    --loop_depth_;
    out.blocks.emplace_back();
    if (take_name("else")) {
      end_block();
      out.blocks.back() = statements({"endfor"});
    }
    next();
    end_block();
  }

  /// a, b or (a, b)
  std::vector<std::string> targets() {
    std::vector<std::string> names;
    const bool brackets = take_operator("(");
    do {
      names.push_back(need_identifier());
    } while (take_operator(",") && peek().kind == TokenKind::kName);
    if (brackets) need_operator(")");
    return names;
  }

  void set_statement(Block& block) {
    Statement& out = add(block, Statement::Kind::kSet);
    out.names = targets();
    if (out.names.size() == 1 && take_operator(".")) {
      out.is_field = true;
      out.names.push_back(need_identifier());
    }
    if (take_operator("=")) {
      out.expressions.push_back(expression_list());
      return end_block();
    }
    if (is_operator("|")) return refuse("statement", "set with a filter");
    if (out.is_field || out.names.size() != 1) return fail(fmt::format("needed '=', found {}", shown()));
    out.kind = Statement::Kind::kSetBlock;
    end_block();
    Block body = statements({"endset"});
    next();
    end_block();
    block.back().blocks.push_back(std::move(body));
  }

  void macro_statement(Statement& out) {
    out.text = need_identifier();
    if (find_entry(LibraryKind::kFunction, out.text) != nullptr)
      return refuse("macro with the name of a function", out.text);
    need_operator("(");
    while (error_.ok() && !is_operator(")")) {
      out.names.push_back(need_identifier());
      out.expressions.push_back(take_operator("=") ? expression() : nullptr);
      if (!take_operator(",")) break;
    }
    need_operator(")");
    end_block();
    const int outer_loops = std::exchange(loop_depth_, 0);
    out.blocks.push_back(statements({"endmacro"}));
    loop_depth_ = outer_loops;
    next();
    end_block();
  }

  // ---- expressions ----

  ExpressionPtr make(Kind kind, std::vector<ExpressionPtr> operands = {}, std::string name = {}) {
    auto node = std::make_unique<Expression>();
    node->kind = kind;
    node->line = peek().line;
    node->name = std::move(name);
    node->operands = std::move(operands);
    for (const auto& operand : node->operands) {
      if (operand != nullptr) node->depth = std::max(node->depth, operand->depth + 1);
    }
    check_depth(*node);
    return node;
  }
  void check_depth(const Expression& node) {
    if (node.depth > kMaxExpressionDepth) fail(fmt::format("an expression is deeper than {}", kMaxExpressionDepth));
  }
  void set_arguments(Expression& node, Arguments given) {
    for (const auto& value : given.values) node.depth = std::max(node.depth, value->depth + 1);
    node.arguments = std::move(given);
    check_depth(node);
  }
  ExpressionPtr make(Kind kind, ExpressionPtr a, std::string name = {}) {
    std::vector<ExpressionPtr> operands;
    operands.push_back(std::move(a));
    return make(kind, std::move(operands), std::move(name));
  }
  ExpressionPtr make(Kind kind, ExpressionPtr a, ExpressionPtr b) {
    std::vector<ExpressionPtr> operands;
    operands.push_back(std::move(a));
    operands.push_back(std::move(b));
    return make(kind, std::move(operands));
  }
  ExpressionPtr constant(Value value) {
    ExpressionPtr node = make(Kind::kConstant);
    node->constant = std::move(value);
    return node;
  }

  /// An expression, or a tuple without brackets.
  ExpressionPtr expression_list() {
    ExpressionPtr first = expression();
    if (!is_operator(",")) return first;
    std::vector<ExpressionPtr> items;
    items.push_back(std::move(first));
    while (take_operator(",")) {
      if (peek().kind == TokenKind::kOutputEnd || peek().kind == TokenKind::kBlockEnd) break;
      items.push_back(expression());
    }
    return make(Kind::kTuple, std::move(items));
  }

  ExpressionPtr expression() {
    if (++nesting_ > kMaxExpressionDepth) fail(fmt::format("an expression is deeper than {}", kMaxExpressionDepth));
    ExpressionPtr value = or_expression();
    while (take_name("if")) {
      std::vector<ExpressionPtr> operands;
      operands.push_back(or_expression());
      operands.push_back(std::move(value));
      operands.push_back(take_name("else") ? expression() : nullptr);
      value = make(Kind::kConditional, std::move(operands));
    }
    --nesting_;
    return value;
  }

  ExpressionPtr or_expression() {
    ExpressionPtr left = and_expression();
    while (take_name("or")) left = make(Kind::kOr, std::move(left), and_expression());
    return left;
  }
  ExpressionPtr and_expression() {
    ExpressionPtr left = not_expression();
    while (take_name("and")) left = make(Kind::kAnd, std::move(left), not_expression());
    return left;
  }
  ExpressionPtr not_expression() {
    int count = 0;
    while (take_name("not")) ++count;
    ExpressionPtr value = compare();
    for (; count > 0; --count) value = make(Kind::kNot, std::move(value));
    return value;
  }

  std::optional<Operator> comparison() {
    using Pair = std::pair<std::string_view, Operator>;
    static constexpr Pair kComparisons[] = {{"==", Operator::kEqual},  {"!=", Operator::kNotEqual},
                                            {"<", Operator::kLess},    {"<=", Operator::kLessEqual},
                                            {">", Operator::kGreater}, {">=", Operator::kGreaterEqual}};
    for (const auto& [text, op] : kComparisons) {
      if (take_operator(text)) return op;
    }
    if (take_name("in")) return Operator::kIn;
    if (is_name("not") && peek(1).kind == TokenKind::kName && peek(1).text == "in") {
      next();
      next();
      return Operator::kNotIn;
    }
    return std::nullopt;
  }

  ExpressionPtr compare() {
    ExpressionPtr first = sum();
    std::vector<ExpressionPtr> operands;
    std::vector<Operator> operators;
    while (const auto op = comparison()) {
      operators.push_back(*op);
      operands.push_back(sum());
    }
    if (operators.empty()) return first;
    operands.insert(operands.begin(), std::move(first));
    ExpressionPtr node = make(Kind::kCompare, std::move(operands));
    node->operators = std::move(operators);
    return node;
  }

  struct BinaryOperator {
    std::string_view text;
    Operator op;
  };

  /// Left-associative operators of one precedence.
  template <class Operand>
  ExpressionPtr chain(std::initializer_list<BinaryOperator> operators, Operand operand) {
    ExpressionPtr left = operand();
    while (true) {
      const auto* found =
          std::find_if(operators.begin(), operators.end(), [&](const auto& o) { return is_operator(o.text); });
      if (found == operators.end()) return left;
      next();
      left = make(Kind::kBinary, std::move(left), operand());
      left->operators = {found->op};
    }
  }
  ExpressionPtr sum() {
    return chain({{"+", Operator::kAdd}, {"-", Operator::kSubtract}}, [&] { return concatenation(); });
  }
  ExpressionPtr concatenation() {
    return chain({{"~", Operator::kConcatenate}}, [&] { return product(); });
  }
  ExpressionPtr product() {
    return chain({{"*", Operator::kMultiply},
                  {"/", Operator::kDivide},
                  {"//", Operator::kFloorDivide},
                  {"%", Operator::kModulo}},
                 [&] { return power(); });
  }
  ExpressionPtr power() {
    return chain({{"**", Operator::kPower}}, [&] { return unary(true); });
  }

  ExpressionPtr unary(bool with_filters) {
    if (++nesting_ > kMaxExpressionDepth) fail(fmt::format("an expression is deeper than {}", kMaxExpressionDepth));
    ExpressionPtr value;
    if (take_operator("-")) {
      value = make(Kind::kNegate, unary(false));
    } else if (take_operator("+")) {
      value = unary(false);
    } else {
      value = primary();
    }
    value = postfix(std::move(value));
    if (with_filters) value = filters(std::move(value));
    --nesting_;
    return value;
  }

  ExpressionPtr primary() {
    const Token token = peek();
    switch (token.kind) {
      case TokenKind::kName: {
        next();
        if (token.text == "true" || token.text == "True") return constant(true);
        if (token.text == "false" || token.text == "False") return constant(false);
        if (token.text == "none" || token.text == "None") return constant(None{});
        if (is_operator("(")) {
          if (!macros_.contains(token.text)) return call(Kind::kCall, nullptr, LibraryKind::kFunction, token.text);
          ExpressionPtr node = make(Kind::kCall, std::vector<ExpressionPtr>(), token.text);
          set_arguments(*node, arguments());
          return node;
        }
        return make(Kind::kName, std::vector<ExpressionPtr>(), token.text);
      }
      case TokenKind::kString: {
        std::string text;
        while (peek().kind == TokenKind::kString) text += next().text;
        return constant(make_text(text));
      }
      case TokenKind::kInteger: {
        int64_t value = 0;
        const char* end = token.text.data() + token.text.size();
        if (std::from_chars(token.text.data(), end, value).ec != std::errc())
          fail(fmt::format("{} is too large", token.text));
        next();
        return constant(value);
      }
      case TokenKind::kFloat: {
        double value = 0;
        std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
        next();
        return constant(value);
      }
      case TokenKind::kOperator:
        if (token.text == "(") return bracketed();
        if (token.text == "[") return list();
        if (token.text == "{") return dict();
        break;
      case TokenKind::kText:
      case TokenKind::kOutputBegin:
      case TokenKind::kOutputEnd:
      case TokenKind::kBlockBegin:
      case TokenKind::kBlockEnd:
      case TokenKind::kEnd: break;
    }
    fail(fmt::format("needed an expression, found {}", shown()));
    return constant(None{});
  }

  ExpressionPtr bracketed() {
    next();
    if (take_operator(")")) return make(Kind::kTuple);
    ExpressionPtr first = expression();
    if (take_operator(")")) return first;
    std::vector<ExpressionPtr> items;
    items.push_back(std::move(first));
    while (take_operator(",")) {
      if (is_operator(")")) break;
      items.push_back(expression());
    }
    need_operator(")");
    return make(Kind::kTuple, std::move(items));
  }

  ExpressionPtr list() {
    next();
    std::vector<ExpressionPtr> items;
    while (error_.ok() && !is_operator("]")) {
      items.push_back(expression());
      if (!take_operator(",")) break;
    }
    need_operator("]");
    return make(Kind::kList, std::move(items));
  }

  ExpressionPtr dict() {
    next();
    std::vector<ExpressionPtr> items;
    while (error_.ok() && !is_operator("}")) {
      items.push_back(expression());
      need_operator(":");
      items.push_back(expression());
      if (!take_operator(",")) break;
    }
    need_operator("}");
    return make(Kind::kDict, std::move(items));
  }

  ExpressionPtr postfix(ExpressionPtr value) {
    while (error_.ok()) {
      if (take_operator(".")) {
        if (peek().kind == TokenKind::kInteger) {
          value = make(Kind::kIndex, std::move(value), primary());
          continue;
        }
        const std::string name = need_identifier();
        if (is_operator("(")) {
          value = call(Kind::kMethod, std::move(value), LibraryKind::kMethod, name);
        } else {
          value = make(Kind::kAttribute, std::move(value), name);
        }
      } else if (take_operator("[")) {
        value = subscript(std::move(value));
      } else if (is_operator("(")) {
        refuse("call", "of an expression");
      } else {
        break;
      }
    }
    return value;
  }

  ExpressionPtr subscript(ExpressionPtr object) {
    ExpressionPtr parts[3];
    int colons = 0;
    while (error_.ok() && !is_operator("]")) {
      if (take_operator(":")) {
        if (++colons > 2) fail("a slice has more than two ':'");
      } else if (parts[colons] != nullptr) {
        break;
      } else {
        parts[colons] = expression();
      }
    }
    need_operator("]");
    if (colons == 0) {
      if (parts[0] == nullptr) {
        fail("'[]' needs an index");
        return object;
      }
      return make(Kind::kIndex, std::move(object), std::move(parts[0]));
    }
    std::vector<ExpressionPtr> operands;
    operands.push_back(std::move(object));
    for (auto& part : parts) operands.push_back(std::move(part));
    return make(Kind::kSlice, std::move(operands));
  }

  ExpressionPtr filters(ExpressionPtr value) {
    while (error_.ok()) {
      if (take_operator("|")) {
        const std::string name = need_identifier();
        value = call(Kind::kFilter, std::move(value), LibraryKind::kFilter, name);
      } else if (take_name("is")) {
        const bool negated = take_name("not");
        const std::string name = need_identifier();
        const LibraryEntry* entry = find_entry(LibraryKind::kTest, name);
        if (entry != nullptr && entry->min_arguments == 1 && !is_operator("(")) {
          value = make(Kind::kTest, std::move(value), name);
          Arguments given;
          given.values.push_back(unary(false));
          given.names.emplace_back();
          set_arguments(*value, std::move(given));
        } else {
          value = call(Kind::kTest, std::move(value), LibraryKind::kTest, name);
        }
        if (negated) value = make(Kind::kNot, std::move(value));
      } else {
        break;
      }
    }
    return value;
  }

  Arguments arguments() {
    Arguments out;
    need_operator("(");
    while (error_.ok() && !is_operator(")")) {
      if (is_operator("*") || is_operator("**")) refuse("argument", "* and **");
      const bool named = peek().kind == TokenKind::kName && peek(1).kind == TokenKind::kOperator && peek(1).text == "=";
      out.names.push_back(named ? next().text : std::string());
      if (named) next();
      out.values.push_back(expression());
      if (!take_operator(",")) break;
    }
    need_operator(")");
    return out;
  }

  /// Something of the library, checked against what the library has.
  ExpressionPtr call(Kind kind, ExpressionPtr object, LibraryKind library, const std::string& name) {
    const LibraryEntry* entry = find_entry(library, name);
    if (entry == nullptr) {
      refuse(to_string(library), name);
      return constant(None{});
    }
    Arguments given;
    if (is_operator("(")) given = arguments();
    const int count = static_cast<int>(given.values.size());
    if (count < entry->min_arguments || count > entry->max_arguments) {
      fail(fmt::format("{} '{}' takes {} to {} arguments, not {}", to_string(library), name, entry->min_arguments,
                       entry->max_arguments, count));
    }
    const bool any_keyword = library == LibraryKind::kFunction && (name == "namespace" || name == "dict");
    for (const std::string& keyword : given.names) {
      if (keyword.empty() || any_keyword || keyword_position(*entry, keyword) >= 0) continue;
      refuse(fmt::format("argument of {} '{}'", to_string(library), name), keyword);
    }
    ExpressionPtr node =
        object == nullptr ? make(kind, std::vector<ExpressionPtr>(), name) : make(kind, std::move(object), name);
    set_arguments(*node, std::move(given));
    return node;
  }

  std::vector<Token> tokens_;
  std::set<std::string, std::less<>> macros_;
  size_t at_ = 0;
  int block_depth_ = 0;
  int loop_depth_ = 0;
  int nesting_ = 0;
  Status error_;
};

}  // namespace

Result<Block> parse(std::string_view source) {
  KVANT_ASSIGN_OR_FAIL(std::vector<Token> tokens, tokenize(source));
  return Parser(std::move(tokens)).run();
}

}  // namespace kvant::engine::jinja
