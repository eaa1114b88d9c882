#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "server/api/answer_format.h"
#include "server/api/tool_call_parser.h"

namespace kvant::server {

/// Answers of /v1/chat/completions.
class ChatFormat : public AnswerFormat {
 public:
  /// `tool_calls` says what calls look like; kNone = answers are not searched for any.
  ChatFormat(const engine::Engine& engine, AnswerIdentity identity, bool logprobs, engine::ToolCallStyle tool_calls)
      : engine_(engine), identity_(std::move(identity)), logprobs_(logprobs), tool_calls_(tool_calls) {}

  Json whole(const std::vector<WholeAnswer>& answers) override;
  std::vector<Json> opening(size_t choice) override;
  std::vector<Json> chunks(const AnswerEvent& event) override;
  Json head(bool chunk) const override;

 private:
  using Tokens = std::vector<engine::TokenLogprobs>;
  /// A choice of a stream in which tools may be called.
  struct Streamed {
    ToolCallParser parser;
    size_t calls = 0;
    Tokens tokens;  ///< Of text that is held.
  };

  Json whole_choice(size_t index, const WholeAnswer& answer) const;
  void add_found(size_t choice, Streamed& streamed, ToolCallParser::Found found, std::vector<Json>& out);
  Json chunk_of(size_t choice, Json delta, const Tokens& tokens, Json finish_reason) const;

  const engine::Engine& engine_;
  AnswerIdentity identity_;
  bool logprobs_;
  engine::ToolCallStyle tool_calls_;
  std::map<size_t, Streamed> streamed_;
};

}  // namespace kvant::server
