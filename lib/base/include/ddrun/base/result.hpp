#pragma once

#include <string>
#include <system_error>
#include <tl/expected.hpp>
#include <type_traits>
#include <utility>

namespace ddrun {

/// Error categories, by what the caller can do. Few on purpose; the message has the detail.
enum class Errc {
  invalid_argument,  ///< wrong input; retrying cannot help
  not_found,         ///< a program or file does not exist
  not_executable,    ///< a program exists but cannot be executed
  unavailable,       ///< the system refuses for now: limits, ports in use, disk full, permissions
  timeout,           ///< the deadline passed
  connection_lost,   ///< the peer is gone; the object is unusable
  protocol,          ///< the peer violated the protocol
  unsupported,       ///< this machine lacks a device, driver or library
  cancelled,         ///< cancelled by the caller
};

/// An error value. `message` names the operation, its object and the reason, to be shown after "ddrun: error: ".
/// `cause` is the system's error, if any.
struct Error {
  Errc code;
  std::string message;
  std::error_code cause{};
};

template <class T>
using Result = tl::expected<T, Error>;

/// Returns a failure: `return fail(Errc::timeout, "…");`
[[nodiscard]] inline tl::unexpected<Error> fail(Errc code, std::string message, std::error_code cause = {}) {
  return tl::unexpected<Error>(Error{code, std::move(message), cause});
}

/// A failure from errno, whose text is appended to `what`.
[[nodiscard]] inline tl::unexpected<Error> fail_errno(Errc code, std::string what, int err) {
  const std::error_code cause(err, std::generic_category());
  return fail(code, std::move(what) + ": " + cause.message(), cause);
}

/// For TRY. The value of a success.
template <class T>
T take_value(Result<T>&& tried) {
  if constexpr (!std::is_void_v<T>) return *std::move(tried);
}
/// For TRY. Not inline, as it is in each function that can fail.
[[gnu::noinline, gnu::cold]] inline tl::unexpected<Error> take_error(Error& error) {
  return tl::unexpected<Error>(std::move(error));
}

}  // namespace ddrun

/// The value of a Result; a failure is returned from the function around it: `auto pipe = TRY(make_pipe());`. Only in
/// functions that return a Result, not in coroutines, and not beside a temporary that has to be destroyed.
#ifdef __clang_analyzer__  // it misses destructors of what a statement expression returns
#define TRY(...) ddrun::take_value(__VA_ARGS__)
#else
#define TRY(...)                                           \
  __extension__({                                          \
    auto tried_ = (__VA_ARGS__);                           \
    if (!tried_) return ddrun::take_error(tried_.error()); \
    ddrun::take_value(std::move(tried_));                  \
  })
#endif
