#pragma once

#include <memory>

#include "ddrun/store/store.hpp"

namespace ddrun::store {

/// What a client does when its connection is lost.
enum class Reconnect {
  /// All later calls fail with the same error. Right for a worker: a server that cut it off has begun another round,
  /// or is gone.
  never,
  /// The next call connects again. Calls that may be carried out twice without harm (set, get, wait, check, multi_get,
  /// multi_set, num_keys, list_keys, queue_length) do so themselves, until their deadline; the others fail with
  /// `connection_lost`, and it is not known whether the server has carried them out. set() and its like wait for the
  /// server then, so that nothing is lost silently.
  on_next_call,
};

struct TcpClientOptions {
  Reconnect reconnect = Reconnect::never;
};

/// A client of a store server that speaks PyTorch's TCPStore protocol (docs/store-protocol.md): ours, or PyTorch's own.
///
/// Puts "/" in front of keys as PyTorch does, so both see the same ones. Any number of threads may use it at once:
/// calls that are answered at once take turns on one connection, and while a thread waits for a key there, another
/// connection is opened for the others. What one thread has set is seen by whatever is called afterwards.
class TcpClient final : public Store {
 public:
  /// Connects and greets. `address` is an IP address, or "localhost", which means 127.0.0.1 and ::1; no name is ever
  /// looked up (see resolve.hpp). A server that is not there yet is tried again until the deadline.
  /// Errors: `invalid_argument` (no such address), `timeout` (with the last reason), `unavailable` (no descriptors,
  /// no route), `protocol` (something else answers there).
  static Result<std::unique_ptr<TcpClient>> connect(std::string_view address, std::uint16_t port, Deadline deadline,
                                                    const TcpClientOptions& options = {});

  /// No call may be under way.
  ~TcpClient() override;

  /// Another client of the same server, with the same options.
  Result<std::unique_ptr<TcpClient>> clone(Deadline deadline) const;

  /// Ends all calls under way, and fails all later ones, with `cancelled`. For a program that must end while its
  /// threads wait: may be called from any thread, also from a signal handler. Does not block.
  void cancel() noexcept;

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
  Result<std::vector<std::string>> list_keys(Deadline deadline) override;
  Result<void> append(std::string_view key, std::string_view value, Deadline deadline) override;
  Result<std::vector<std::string>> multi_get(std::span<const std::string> keys, Deadline deadline) override;
  Result<void> multi_set(std::span<const std::string> keys, std::span<const std::string> values,
                         Deadline deadline) override;
  Result<void> queue_push(std::string_view queue, std::string_view element, Deadline deadline) override;
  Result<std::string> queue_pop(std::string_view queue, Deadline deadline) override;
  Result<std::int64_t> queue_length(std::string_view queue, Deadline deadline) override;
  Result<void> barrier(std::string_view key, std::int64_t members, Deadline deadline) override;

 private:
  class Pool;
  explicit TcpClient(std::unique_ptr<Pool> pool);
  std::unique_ptr<Pool> pool_;
};

}  // namespace ddrun::store
