#include "engine/quality/kv_quality.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>

namespace kvant::engine {

std::string to_json(const KvQualityReport& report) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const KvQualityRow& row : report.rows)
    rows.push_back({{"kv", row.kv},
                    {"policy", row.policy},
                    {"conditioning", row.conditioning},
                    {"edges", row.edges},
                    {"ppl", row.ppl},
                    {"kld_mean", row.kld_mean},
                    {"kld_p99", row.kld_p99},
                    {"top1_agreement", row.top1_agreement},
                    {"base_bits", row.base_bits},
                    {"effective_bits", row.effective_bits},
                    {"bytes_per_token", row.bytes_per_token}});
  const nlohmann::ordered_json out{
      {"model", report.model},
      {"weights", report.weights},
      {"text_tokens", report.text_tokens},
      {"context", report.context},
      {"chunks", report.chunks},
      {"scored_tokens", report.scored_tokens},
      {"baseline", {{"kv", "f16"}, {"ppl", report.baseline_ppl}, {"bytes_per_token", report.baseline_bytes_per_token}}},
      {"rows", rows}};
  // A model's name comes from its file and need not be UTF-8.
  return out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string to_table(const KvQualityReport& report) {
  size_t width = 2;
  for (const KvQualityRow& row : report.rows) width = std::max(width, row.kv.size());
  std::string out;
  const auto append = [&out](auto format, const auto&... args) {
    fmt::format_to(std::back_inserter(out), fmt::runtime(format), args...);
  };
  append("{}, {} weights: {} scored tokens ({} chunks of {}), f16 cache: ppl {:.3f}, {:.0f} bytes/token\n\n",
         report.model, report.weights, report.scored_tokens, report.chunks, report.context, report.baseline_ppl,
         report.baseline_bytes_per_token);
  append("{:<{}}  {:<13}  {:<4}  {:<8}  {:>9}  {:>9}  {:>9}  {:>6}  {:>5}  {:>9}  {:>11}\n", "kv", width, "policy",
         "cond", "edges", "ppl", "KLD mean", "KLD p99", "top-1", "bits", "eff. bits", "bytes/token");
  for (const KvQualityRow& row : report.rows)
    append("{:<{}}  {:<13}  {:<4}  {:<8}  {:>9.3f}  {:>9.5f}  {:>9.4f}  {:>5.1f}%  {:>5.2f}  {:>9.2f}  {:>11.1f}\n",
           row.kv, width, row.policy, row.conditioning, row.edges, row.ppl, row.kld_mean, row.kld_p99,
           100.0 * row.top1_agreement, row.base_bits, row.effective_bits, row.bytes_per_token);
  return out;
}

}  // namespace kvant::engine
