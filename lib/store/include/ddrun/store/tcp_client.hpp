#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"

namespace ddrun::store {

inline constexpr std::size_t max_key_size = 8191;  ///< bytes
inline constexpr std::size_t max_value_size = 8 * 1024 * 1024;
inline constexpr std::size_t max_keys_per_call = 131072;

/// A client of a store server that speaks PyTorch's TCPStore protocol (docs/store.md): ours, or PyTorch's own.
/// Keys and values are any bytes. Puts "/" in front of keys as PyTorch does, so both see the same ones.
///
/// Every call may block, until `deadline` at the longest, and up to five seconds more to withdraw from a server that
/// has stopped answering; Deadline::max() waits without end. A deadline in the past still finds what is there already.
///
/// There is one connection. Calls from several threads take turns on it, so a call that waits for a key holds up those
/// of other threads, also beyond their deadlines: give a thread that waits long a client of its own.
///
/// Errors of all calls: `invalid_argument` for a key, value or number of keys beyond the limits, `timeout`,
/// `connection_lost` when the server is gone and `protocol` when it answers nonsense. After these two the client is of
/// no more use: it does not connect again, since a server that cut it off has begun another round, or is gone.
class TcpClient {
 public:
  /// Connects and greets. `address` is an IP address, or "localhost", which means 127.0.0.1 and ::1; no name is ever
  /// looked up (see resolve.hpp). A server that is not there yet is tried again until the deadline.
  /// Errors: `invalid_argument` (no such address), `timeout` (with the last reason), `unavailable` (no descriptors,
  /// no route), `protocol` (something else answers there).
  static Result<std::unique_ptr<TcpClient>> connect(std::string_view address, std::uint16_t port, Deadline deadline);

  ~TcpClient();

  /// The server as it was reached: "127.0.0.1:29500", "[::1]:29500".
  [[nodiscard]] const std::string& server() const;

  /// Creates or replaces. May return before the server has it; what this client asks later sees it.
  Result<void> set(std::string_view key, std::string_view value, Deadline deadline);

  /// Waits until the key exists. If it is deleted right then, the value is empty.
  Result<std::string> get(std::string_view key, Deadline deadline);

  /// Adds to the decimal number at `key`, a missing one being 0, and returns the sum. Adding 0 creates the key too.
  /// `connection_lost` if the value is not a number: the server hangs up.
  Result<std::int64_t> add(std::string_view key, std::int64_t delta, Deadline deadline);

  /// Waits until all keys have come into existence. `timeout` names the first keys waited for.
  Result<void> wait(std::span<const std::string> keys, Deadline deadline);

  /// Whether all keys exist now.
  Result<bool> check(std::span<const std::string> keys, Deadline deadline);

  /// Stores `desired` if the value is `expected`, or if the key is missing and `expected` is empty. Returns the value
  /// afterwards; `expected` if the key is still missing.
  Result<std::string> compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                  Deadline deadline);

  /// Whether there was such a key.
  Result<bool> delete_key(std::string_view key, Deadline deadline);

  /// All keys of the server, of all clients.
  Result<std::int64_t> num_keys(Deadline deadline);

  /// The keys that clients set, in no order. Not the queues.
  Result<std::vector<std::string>> list_keys(Deadline deadline);

  /// Waits until all keys exist and returns their values in the same order.
  Result<std::vector<std::string>> multi_get(std::span<const std::string> keys, Deadline deadline);

 private:
  class Connection;
  explicit TcpClient(std::unique_ptr<Connection> connection);
  template <class Call>
  std::invoke_result_t<Call, Connection&> with_connection(const Result<void>& arguments, Call call);

  std::mutex mutex_;  // for the length of a call
  std::unique_ptr<Connection> connection_;
};

}  // namespace ddrun::store
