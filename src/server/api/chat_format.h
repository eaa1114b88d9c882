#pragma once

#include <string>
#include <vector>

#include "server/api/answer_format.h"

namespace kvant::server {

/// Answers of /v1/chat/completions.
class ChatFormat : public AnswerFormat {
 public:
  ChatFormat(const engine::Engine& engine, AnswerIdentity identity, bool logprobs)
      : engine_(engine), identity_(std::move(identity)), logprobs_(logprobs) {}

  Json whole(const std::vector<WholeAnswer>& answers) override;
  std::vector<Json> opening(size_t choice) override;
  std::vector<Json> chunks(const AnswerEvent& event) override;
  Json head(bool chunk) const override;

 private:
  Json chunk_of(size_t choice, Json delta, const std::vector<engine::TokenLogprobs>& tokens, Json finish_reason) const;

  const engine::Engine& engine_;
  AnswerIdentity identity_;
  bool logprobs_;
};

}  // namespace kvant::server
