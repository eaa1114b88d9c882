#include "engine/tokenizer/jinja_evaluator.h"

#include <algorithm>

#include <fmt/format.h>

namespace kvant::engine::jinja {

namespace {
constexpr int kMaxValueDepth = 64;
}  // namespace

Evaluator::Evaluator(const Block& root, const RenderInput& input)
    : root_(root), input_(input), scopes_(1), steps_left_(input.max_steps), text_left_(input.max_text_bytes) {
  for (const auto& [name, value] : input.variables) scopes_[0].insert_or_assign(name, value);
}

Result<Text> Evaluator::run() {
  Text out;
  execute(root_, out);
  if (failed()) return failure(error_);
  return out;
}

Value Evaluator::fail(std::string_view what) {
  if (!failed()) {
    error_ = Status(StatusCode::kInvalidArgument, fmt::format("chat template, line {}: {}", line_, what));
  }
  return Undefined{};
}

bool Evaluator::spend(int64_t steps) {
  steps_left_ -= steps;
  if (steps_left_ >= 0) return !failed();
  if (!failed()) {
    error_ = Status(StatusCode::kResourceExhausted,
                    fmt::format("chat template, line {}: more than {} steps", line_, input_.max_steps));
  }
  return false;
}

Value Evaluator::text(Text value) {
  text_left_ -= static_cast<int64_t>(value.size());
  if (text_left_ < 0) {
    if (!failed()) {
      error_ = Status(StatusCode::kResourceExhausted,
                      fmt::format("chat template, line {}: more than {} bytes of text", line_, input_.max_text_bytes));
    }
    return Undefined{};
  }
  return make_text(std::move(value));
}

bool Evaluator::accept(int depth, int64_t weight) {
  if (depth > kMaxValueDepth) fail(fmt::format("lists and mappings are nested deeper than {}", kMaxValueDepth));
  // Nothing heavier than the whole budget could ever be used, and sums of weights stay far from overflow.
  if (weight > input_.max_steps) fail("a list or mapping is too large");
  return !failed();
}

Value Evaluator::list(std::vector<Value> items, bool is_tuple) {
  if (!spend(static_cast<int64_t>(items.size()))) return Undefined{};
  auto made = std::make_shared<List>();
  made->items = std::move(items);
  made->is_tuple = is_tuple;
  made->measure();
  if (!accept(made->depth, made->weight)) return Undefined{};
  return ListPtr(std::move(made));
}

Value Evaluator::dict(std::vector<std::pair<Value, Value>> items) {
  // Looking each key up costs as much as comparing it with those before it.
  if (!spend(static_cast<int64_t>(items.size() * items.size() / 16 + items.size()))) return Undefined{};
  auto made = std::make_shared<Dict>();
  for (auto& item : items) {
    const Value& key = item.first;
    if (as_text(key) == nullptr && !std::holds_alternative<int64_t>(key)) {
      return fail(fmt::format("a mapping's key must be a string or an integer, not {}", type_name(key)));
    }
    const auto same = std::find_if(made->items.begin(), made->items.end(),
                                   [&](const auto& other) { return equal(other.first, key); });
    if (same == made->items.end()) {
      made->items.push_back(std::move(item));
    } else {
      same->second = std::move(item.second);
    }
  }
  made->measure();
  if (!accept(made->depth, made->weight)) return Undefined{};
  return DictPtr(std::move(made));
}

void Evaluator::append(Text& out, const Value& value) {
  if (spend(weight_of(value))) append_str(out, value);
}

void Evaluator::write(Text& out, const Text& piece) {
  text_left_ -= static_cast<int64_t>(piece.size());
  if (text_left_ < 0) {
    text({});
  } else {
    out.append(piece);
  }
}

const Value* Evaluator::find_variable(std::string_view name) const {
  for (size_t i = scopes_.size(); i-- > first_visible_scope_;) {
    const auto found = scopes_[i].find(name);
    if (found != scopes_[i].end()) return &found->second;
  }
  const auto found = scopes_[0].find(name);
  return found == scopes_[0].end() ? nullptr : &found->second;
}

Evaluator::Flow Evaluator::execute(const Block& block, Text& out) {
  if (++depth_ > kMaxDepth) fail("blocks and calls are nested too deeply");
  Flow flow = Flow::kNormal;
  for (const Statement& statement : block) {
    line_ = statement.line;
    if (failed() || !spend(1)) break;
    flow = execute(statement, out);
    if (flow != Flow::kNormal) break;
  }
  --depth_;
  return flow;
}

Evaluator::Flow Evaluator::execute(const Statement& statement, Text& out) {
  using Kind = Statement::Kind;
  switch (statement.kind) {
    case Kind::kText: write(out, Text::of(statement.text)); break;
    case Kind::kOutput: {
      const Value value = evaluate(*statement.expressions[0]);
      Text piece;
      append(piece, value);
      write(out, piece);
      break;
    }
    case Kind::kIf: return execute_if(statement, out);
    case Kind::kFor: return execute_for(statement, out);
    case Kind::kSet: execute_set(statement); break;
    case Kind::kSetBlock: {
      Text body;
      execute(statement.blocks[0], body);
      scopes_.back().insert_or_assign(statement.names[0], text(std::move(body)));
      break;
    }
    case Kind::kMacro: scopes_.back().insert_or_assign(statement.text, Function{statement.text, &statement}); break;
    case Kind::kBreak: return Flow::kBreak;
    case Kind::kContinue: return Flow::kContinue;
  }
  return Flow::kNormal;
}

Evaluator::Flow Evaluator::execute_if(const Statement& statement, Text& out) {
  const size_t conditions = statement.expressions.size();
  for (size_t i = 0; i < conditions; ++i) {
    const bool holds = truthy(evaluate(*statement.expressions[i]));
    if (failed()) return Flow::kNormal;
    if (holds) return execute(statement.blocks[i], out);
  }
  return statement.blocks.size() > conditions ? execute(statement.blocks.back(), out) : Flow::kNormal;
}

bool Evaluator::bind(const std::vector<std::string>& names, const Value& value, Scope& scope) {
  if (names.size() == 1) {
    scope.insert_or_assign(names[0], value);
    return true;
  }
  const auto parts = elements(value);
  if (!parts) return false;
  if (parts->size() != names.size()) {
    fail(fmt::format("{} values for {} names", parts->size(), names.size()));
    return false;
  }
  for (size_t i = 0; i < names.size(); ++i) scope.insert_or_assign(names[i], (*parts)[i]);
  return true;
}

Evaluator::Flow Evaluator::execute_for(const Statement& statement, Text& out) {
  const Value source = evaluate(*statement.expressions[0]);
  auto items = elements(source);
  if (!items || failed()) return Flow::kNormal;
  const Expression* filter = statement.expressions[1].get();
  if (filter != nullptr) {
    std::vector<Value> kept;
    for (const Value& item : *items) {
      scopes_.emplace_back();
      const bool keep = bind(statement.names, item, scopes_.back()) && truthy(evaluate(*filter));
      scopes_.pop_back();
      if (failed()) return Flow::kNormal;
      if (keep) kept.push_back(item);
    }
    items = std::move(kept);
  }
  if (items->empty()) return execute(statement.blocks[1], out);

  const Value all = list(*std::move(items));
  if (failed()) return Flow::kNormal;
  auto loop = std::make_shared<Loop>();
  loop->items = std::get<ListPtr>(all);
  if (const Value* outer = find_variable("loop")) {
    if (const auto* outer_loop = std::get_if<LoopPtr>(outer)) loop->nesting = (*outer_loop)->nesting + 1;
  }
  for (loop->index = 0; loop->index < loop->items->items.size() && spend(1); ++loop->index) {
    scopes_.emplace_back();
    scopes_.back().insert_or_assign("loop", Value(loop));
    Flow flow = Flow::kNormal;
    if (bind(statement.names, loop->items->items[loop->index], scopes_.back()))
      flow = execute(statement.blocks[0], out);
    scopes_.pop_back();
    if (flow == Flow::kBreak) break;
  }
  return Flow::kNormal;
}

void Evaluator::execute_set(const Statement& statement) {
  const Value value = evaluate(*statement.expressions[0]);
  if (failed()) return;
  if (!statement.is_field) {
    bind(statement.names, value, scopes_.back());
    return;
  }
  const Value* object = find_variable(statement.names[0]);
  if (object == nullptr || !std::holds_alternative<Namespace*>(*object)) {
    fail(fmt::format("'{}' is no namespace, so its field '{}' cannot be set", statement.names[0], statement.names[1]));
    return;
  }
  std::get<Namespace*>(*object)->fields.insert_or_assign(statement.names[1], value);
}

Value Evaluator::call_macro(const Expression& call) {
  const Value* found = find_variable(call.name);
  const auto* function = found == nullptr ? nullptr : std::get_if<Function>(found);
  if (function == nullptr || function->macro == nullptr)
    return fail(fmt::format("'{}' is not a macro here", call.name));
  const Statement& macro = *function->macro;
  Scope scope;
  size_t position = 0;
  for (size_t i = 0; i < call.arguments.values.size(); ++i) {
    std::string name = call.arguments.names[i];
    if (name.empty()) {
      if (position >= macro.names.size())
        return fail(fmt::format("macro '{}' takes {} arguments", macro.text, macro.names.size()));
      name = macro.names[position++];
    } else if (std::find(macro.names.begin(), macro.names.end(), name) == macro.names.end()) {
      return fail(fmt::format("macro '{}' has no parameter '{}'", macro.text, name));
    }
    scope.insert_or_assign(name, evaluate(*call.arguments.values[i]));
  }
  const size_t outer_first = std::exchange(first_visible_scope_, scopes_.size());
  scopes_.push_back(std::move(scope));
  for (size_t i = 0; i < macro.names.size() && !failed(); ++i) {
    if (scopes_.back().contains(macro.names[i])) continue;
    const Expression* otherwise = macro.expressions[i].get();
    Value value = otherwise == nullptr ? Value(Undefined{macro.names[i]}) : evaluate(*otherwise);
    scopes_.back().insert_or_assign(macro.names[i], std::move(value));
  }
  Text out;
  execute(macro.blocks[0], out);
  scopes_.pop_back();
  first_visible_scope_ = outer_first;
  line_ = call.line;
  return text(std::move(out));
}

std::optional<std::vector<Value>> Evaluator::elements(const Value& value) {
  std::vector<Value> out;
  if (std::holds_alternative<Undefined>(value)) return out;
  if (const auto* items = std::get_if<ListPtr>(&value)) {
    if (!spend(static_cast<int64_t>((*items)->items.size()))) return std::nullopt;
    return (*items)->items;
  }
  if (const auto* items = std::get_if<DictPtr>(&value)) {
    for (const auto& [key, item] : (*items)->items) out.push_back(key);
  } else if (const Text* characters = as_text(value)) {
    for (size_t at = 0; at < characters->size();) {
      size_t length = 1;
      while (at + length < characters->size() &&
             (static_cast<unsigned char>(characters->bytes[at + length]) & 0xC0) == 0x80)
        ++length;
      out.push_back(make_text(characters->slice(at, length)));
      at += length;
    }
  } else {
    fail(fmt::format("a {} cannot be iterated", type_name(value)));
    return std::nullopt;
  }
  if (!spend(static_cast<int64_t>(out.size()))) return std::nullopt;
  return out;
}

Result<Text> render(const Block& block, const RenderInput& input) { return Evaluator(block, input).run(); }

}  // namespace kvant::engine::jinja
