#include "server/json.h"

#include <exception>

#include <fmt/format.h>

namespace kvant::server {
namespace {

/// Walks the text once without building anything, so that what is too deep or too large is never built.
class LimitChecker : public nlohmann::json_sax<Json> {
 public:
  explicit LimitChecker(const JsonLimits& limits) : limits_(limits) {}
  const std::string& problem() const { return problem_; }

  bool null() override { return count(); }
  bool boolean(bool) override { return count(); }
  bool number_integer(number_integer_t) override { return count(); }
  bool number_unsigned(number_unsigned_t) override { return count(); }
  bool number_float(number_float_t, const string_t&) override { return count(); }
  bool string(string_t&) override { return count(); }
  bool binary(binary_t&) override { return count(); }
  bool key(string_t&) override { return true; }
  bool start_object(size_t) override { return open(); }
  bool start_array(size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    // The library's text begins with its own name and number in brackets.
    const std::string_view text = error.what();
    const size_t begin = text.find("] ");
    problem_ = fmt::format("byte {}: {}", position, text.substr(begin == std::string_view::npos ? 0 : begin + 2));
    return false;
  }

 private:
  bool count() {
    if (++values_ <= limits_.max_values) return true;
    problem_ = fmt::format("more than {} values", limits_.max_values);
    return false;
  }
  bool open() {
    if (++depth_ > limits_.max_depth) {
      problem_ = fmt::format("nested deeper than {} levels", limits_.max_depth);
      return false;
    }
    return count();
  }
  bool close() {
    --depth_;
    return true;
  }

  const JsonLimits& limits_;
  size_t depth_ = 0;
  size_t values_ = 0;
  std::string problem_;
};

}  // namespace

Result<Json> parse_json(std::string_view text, const JsonLimits& limits) {
  LimitChecker checker(limits);
  if (!Json::sax_parse(text, &checker)) {
    return failure(StatusCode::kInvalidArgument, fmt::format("the body is not acceptable JSON: {}", checker.problem()));
  }
  Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) return failure(StatusCode::kInvalidArgument, "the body is not acceptable JSON");
  return json;
}

std::string to_text(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace kvant::server
