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

/// A client for PyTorch's TCPStore protocol (docs/store.md), for ddrun's server and PyTorch's. Keys and values
/// are any bytes. Prepends "/" to keys as PyTorch's clients do, so that both see the same keys.
///
/// Every call may block until `deadline`, and five seconds longer if the server has stopped responding;
/// Deadline::max(): without limit. With a deadline in the past existing keys are still found.
///
/// Thread-safe. There is one connection, so calls are serialized: one that waits for a key delays those of other
/// threads, also beyond their deadlines. A thread that waits long should use a separate client.
///
/// Errors of all calls: `invalid_argument` for a key, value or number of keys beyond the limits, `timeout`,
/// `connection_lost`, and `protocol` for an invalid reply. After the last two the client is unusable. It does not
/// reconnect, because the server may have begun another round.
class TcpClient {
 public:
  /// Connects and sends the greeting. `address` is an IP address, or "localhost", which means 127.0.0.1 and ::1; no
  /// name is looked up (see resolve.hpp). Retries until the deadline while the server does not accept. Errors:
  /// `invalid_argument` (no IP address, port 0), `timeout` (with the last reason), `unavailable` (no descriptors, no
  /// route), `protocol` (another service listens there).
  static Result<std::unique_ptr<TcpClient>> connect(std::string_view address, std::uint16_t port, Deadline deadline);

  ~TcpClient();

  /// The server's address: "127.0.0.1:29500", "[::1]:29500".
  [[nodiscard]] const std::string& server() const;

  /// Creates or replaces. May return before the server has the value; later calls of this client see it.
  Result<void> set(std::string_view key, std::string_view value, Deadline deadline);

  /// Waits until the key exists, then returns its value; empty if it was deleted in between.
  Result<std::string> get(std::string_view key, Deadline deadline);

  /// Adds to the decimal number at `key`, a missing one being 0, and returns the sum. Adding 0 creates the key too.
  /// `connection_lost` if the value is not a number: the server closes the connection.
  Result<std::int64_t> add(std::string_view key, std::int64_t delta, Deadline deadline);

  /// Waits until each key has existed. The message of `timeout` names the first keys waited for.
  Result<void> wait(std::span<const std::string> keys, Deadline deadline);

  /// Whether all keys exist now.
  Result<bool> check(std::span<const std::string> keys, Deadline deadline);

  /// Stores `desired` if the value is `expected`, or if the key is missing and `expected` is empty. Returns the value
  /// afterwards; `expected` if the key is still missing.
  Result<std::string> compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                  Deadline deadline);

  /// Whether there was such a key.
  Result<bool> delete_key(std::string_view key, Deadline deadline);

  /// The number of keys on the server, of all clients.
  Result<std::int64_t> num_keys(Deadline deadline);

  /// The keys set by clients, in no order, without queues.
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
