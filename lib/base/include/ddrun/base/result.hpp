#pragma once

#include <string>
#include <system_error>
#include <tl/expected.hpp>
#include <utility>

namespace ddrun {

/// What a caller can do about a failure. Few on purpose; the detail is in the message.
enum class Errc {
  invalid_argument,  ///< what the user or caller gave is wrong; trying again cannot help
  not_found,         ///< a program or file is missing
  not_executable,    ///< a program is there but cannot be started
  unavailable,       ///< the system refuses now: limits, ports in use, disk full, permissions
  timeout,           ///< the deadline passed
  connection_lost,   ///< the peer is gone; the object is unusable from here on
  protocol,          ///< the peer sent something that is not allowed
  unsupported,       ///< this machine has not what it takes: a device, a driver, a library
  cancelled,         ///< asked for by the caller
};

/// A failure as a value: `message` says what was tried, on what, and why it failed, ready to be shown
/// to a user after "ddrun: error: ". `cause` is the system's error where there is one.
struct Error {
  Errc code;
  std::string message;
  std::error_code cause{};
};

template <class T>
using Result = tl::expected<T, Error>;

/// Shorthand for returning a failure: `return fail(Errc::timeout, "…");`
[[nodiscard]] inline tl::unexpected<Error> fail(Errc code, std::string message, std::error_code cause = {}) {
  return tl::unexpected<Error>(Error{code, std::move(message), cause});
}

/// A failure from errno: the system's words are appended to `what`.
[[nodiscard]] inline tl::unexpected<Error> fail_errno(Errc code, std::string what, int err) {
  const std::error_code cause(err, std::generic_category());
  return fail(code, std::move(what) + ": " + cause.message(), cause);
}

}  // namespace ddrun
