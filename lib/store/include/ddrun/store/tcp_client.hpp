#pragma once

#include <memory>

#include "ddrun/store/store.hpp"

namespace ddrun::store {

/// A client of a store server that speaks PyTorch's TCPStore protocol (PROTOCOL.md): ours, or PyTorch's own.
///
/// Puts "/" in front of keys as PyTorch does, so both see the same ones. Owns one connection. Threads may share it, one
/// operation at a time: whoever waits for a key keeps the others waiting, so give a thread that waits long its own
/// clone().
class TcpClient final : public Store {
 public:
  /// Connects and greets. `address` is an IP address, or "localhost", which means 127.0.0.1 and ::1; no name is ever
  /// looked up (see resolve.hpp). A server that is not there yet is tried again until the deadline.
  /// Errors: `invalid_argument` (no such address), `timeout` (with the last reason), `unavailable` (no descriptors,
  /// no route), `protocol` (something else answers there).
  static Result<std::unique_ptr<TcpClient>> connect(std::string_view address, std::uint16_t port, Deadline deadline);

  ~TcpClient() override;

  /// Another connection to the same server.
  Result<std::unique_ptr<TcpClient>> clone(Deadline deadline) const;

  /// The server as it was reached: "127.0.0.1:29500", "[::1]:29500".
  [[nodiscard]] const std::string& server() const;

  Result<void> set(std::string_view key, std::string_view value, Deadline deadline) override;
  Result<std::string> get(std::string_view key, Deadline deadline) override;
  Result<std::int64_t> add(std::string_view key, std::int64_t delta, Deadline deadline) override;
  Result<void> wait(std::span<const std::string> keys, Deadline deadline) override;
  Result<bool> check(std::span<const std::string> keys, Deadline deadline) override;
  Result<std::string> compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                  Deadline deadline) override;
  Result<bool> delete_key(std::string_view key, Deadline deadline) override;
  Result<std::int64_t> num_keys(Deadline deadline) override;
  Result<void> append(std::string_view key, std::string_view value, Deadline deadline) override;
  Result<std::vector<std::string>> multi_get(std::span<const std::string> keys, Deadline deadline) override;
  Result<void> multi_set(std::span<const std::string> keys, std::span<const std::string> values,
                         Deadline deadline) override;

 private:
  class Connection;
  explicit TcpClient(std::unique_ptr<Connection> connection);
  std::unique_ptr<Connection> connection_;
};

}  // namespace ddrun::store
