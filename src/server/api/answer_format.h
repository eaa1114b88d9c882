#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvant/engine/engine.h"
#include "server/api/generation_run.h"
#include "server/json.h"

namespace kvant::server {

/// A finished choice.
struct WholeAnswer {
  std::string text;
  std::vector<engine::TokenLogprobs> tokens;
  engine::Generation end;
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;  ///< Of the prompt.
};
Json to_json(const Usage& usage);

/// How an endpoint writes answers: whole, or in chunks of a stream.
class AnswerFormat {
 public:
  virtual ~AnswerFormat() = default;
  virtual Json whole(const std::vector<WholeAnswer>& answers) = 0;
  /// Chunks before the first text of a choice.
  virtual std::vector<Json> opening(size_t choice) = 0;
  /// Chunks for what is new; none when there is nothing to show yet.
  virtual std::vector<Json> chunks(const AnswerEvent& event) = 0;
  /// The members that whole answers and chunks begin with, without choices.
  virtual Json head(bool chunk) const = 0;
};

/// What identifies an answer.
struct AnswerIdentity {
  std::string id;  ///< Such as "cmpl-..."
  int64_t created = 0;
  std::string model;

  static AnswerIdentity make(std::string_view prefix, std::string model);
};

std::string_view finish_reason_name(engine::FinishReason reason);

}  // namespace kvant::server
