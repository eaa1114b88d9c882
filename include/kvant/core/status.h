#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <tl/expected.hpp>

namespace kvant {

enum class StatusCode : unsigned char {
  kOk,
  kInvalidArgument,    ///< The caller's input is wrong; the text names value, need and remedy.
  kUnsupported,        ///< Valid, but this build or device does not have it; the text says needed and offered.
  kNotFound,           ///< A file, tensor or name does not exist.
  kDataLoss,           ///< A file is truncated or contradicts itself.
  kResourceExhausted,  ///< Memory, pages or a stated budget ran out.
  kCudaError,          ///< A CUDA call failed; the text holds the call and CUDA's own text.
  kInternal,           ///< A defect in kvant.
};

/// Name of a code as users see it, such as "invalid argument".
std::string_view to_string(StatusCode code);

/// Outcome of a call that returns no value: a code for programs and a message for people.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status ok_status() { return {}; }
  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  /// "invalid argument: head_dim 24 ...", or "ok".
  std::string to_string() const;

  friend bool operator==(const Status&, const Status&) = default;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

/// A value or the Status that says why there is none.
template <class T>
using Result = tl::expected<T, Status>;

/// Wraps a failed Status for return from a function that returns Result<T>.
inline tl::unexpected<Status> failure(Status status) { return tl::unexpected<Status>(std::move(status)); }
inline tl::unexpected<Status> failure(StatusCode code, std::string message) {
  return tl::unexpected<Status>(Status(code, std::move(message)));
}

namespace detail {
[[noreturn]] void check_failed(const char* condition, const char* file, int line);
inline Status as_status(Status status) { return status; }
template <class T>
Status as_status(const Result<T>& result) {
  return result ? Status() : result.error();
}
}  // namespace detail

}  // namespace kvant

/// Stops the program on a programmer's error. User input must never reach a check.
#define KVANT_CHECK(condition)                                       \
  do {                                                               \
    if (!(condition)) [[unlikely]]                                   \
      ::kvant::detail::check_failed(#condition, __FILE__, __LINE__); \
  } while (false)

/// Returns early from a function that returns Status.
#define KVANT_RETURN_IF_ERROR(expression)                                                                       \
  do {                                                                                                          \
    if (auto kvant_status_ = ::kvant::detail::as_status(expression); !kvant_status_.ok()) return kvant_status_; \
  } while (false)

/// Returns early from a function that returns Result<T>.
#define KVANT_FAIL_IF_ERROR(expression)                                                   \
  do {                                                                                    \
    if (auto kvant_status_ = ::kvant::detail::as_status(expression); !kvant_status_.ok()) \
      return ::kvant::failure(std::move(kvant_status_));                                  \
  } while (false)

#define KVANT_CONCAT_INNER_(a, b) a##b
#define KVANT_CONCAT_(a, b) KVANT_CONCAT_INNER_(a, b)

/// `KVANT_ASSIGN_OR_FAIL(auto x, f())`: x = value of f(), or return its error from a function that returns Result<T>.
#define KVANT_ASSIGN_OR_FAIL(declaration, expression)                                   \
  auto KVANT_CONCAT_(kvant_result_, __LINE__) = (expression);                           \
  if (!KVANT_CONCAT_(kvant_result_, __LINE__))                                          \
    return ::kvant::failure(std::move(KVANT_CONCAT_(kvant_result_, __LINE__)).error()); \
  declaration = *std::move(KVANT_CONCAT_(kvant_result_, __LINE__))

/// The same for a function that returns Status.
#define KVANT_ASSIGN_OR_RETURN(declaration, expression)                                                          \
  auto KVANT_CONCAT_(kvant_result_, __LINE__) = (expression);                                                    \
  if (!KVANT_CONCAT_(kvant_result_, __LINE__)) return std::move(KVANT_CONCAT_(kvant_result_, __LINE__)).error(); \
  declaration = *std::move(KVANT_CONCAT_(kvant_result_, __LINE__))
