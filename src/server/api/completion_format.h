#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/api/answer_format.h"

namespace kvant::server {

/// Answers of /v1/completions.
class CompletionFormat : public AnswerFormat {
 public:
  /// `echoes` holds what each choice begins with.
  CompletionFormat(const engine::Engine& engine, AnswerIdentity identity, std::vector<std::string> echoes,
                   bool logprobs);

  Json whole(const std::vector<WholeAnswer>& answers) override;
  std::vector<Json> opening(size_t choice) override;
  std::vector<Json> chunks(const AnswerEvent& event) override;
  Json head(bool chunk) const override;

 private:
  Json choice(size_t index, std::string text, const std::vector<engine::TokenLogprobs>& tokens, Json finish_reason);
  Json chunk_of(Json choice) const;

  const engine::Engine& engine_;
  AnswerIdentity identity_;
  std::vector<std::string> echoes_;
  std::vector<int64_t> offsets_;  ///< Characters shown so far, per choice.
  bool logprobs_;
};

}  // namespace kvant::server
