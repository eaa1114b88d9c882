#include "sampling_options.h"

namespace kvant::cli {

void add_sampling_options(CLI::App& app, SamplingOptions& options) {
  engine::SamplingParams& params = options.params;
  app.add_option("-n,--max-tokens", options.max_tokens, "Most tokens to generate")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 27))
      ->type_name("N");
  app.add_option("--temperature", params.temperature, "0 = always the most likely token")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 100.0))
      ->type_name("T");
  app.add_option("--top-k", params.top_k, "Choose among the K most likely tokens; 0 = off")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 27))
      ->type_name("K");
  app.add_option("--top-p", params.top_p, "Choose among the most likely tokens that hold probability P")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0))
      ->type_name("P");
  app.add_option("--min-p", params.min_p, "Leave out tokens less likely than P times the most likely one")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0))
      ->type_name("P");
  app.add_option("--repetition-penalty", params.repetition_penalty, "Make tokens that occurred less likely; 1 = off")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 100.0))
      ->type_name("R");
  app.add_option("--presence-penalty", params.presence_penalty, "Make tokens of the answer less likely; 0 = off")
      ->capture_default_str()
      ->check(CLI::Range(-100.0, 100.0))
      ->type_name("P");
  app.add_option("--frequency-penalty", params.frequency_penalty, "Likewise, once per occurrence; 0 = off")
      ->capture_default_str()
      ->check(CLI::Range(-100.0, 100.0))
      ->type_name("P");
  app.add_option("--seed", params.seed, "Seed of the random choice")->capture_default_str()->type_name("N");
  app.add_option("--stop", options.stop, "Stop at this text; may be given several times")
      ->type_name("TEXT")
      ->allow_extra_args(false);
}

Result<engine::GenerateRequest> make_request(const SamplingOptions& options) {
  for (const std::string& stop : options.stop)
    if (stop.empty()) return failure(StatusCode::kInvalidArgument, "--stop needs a text that is not empty");
  engine::GenerateRequest request;
  request.sampling = options.params;
  request.max_tokens = options.max_tokens;
  request.stop = options.stop;
  return request;
}

}  // namespace kvant::cli
