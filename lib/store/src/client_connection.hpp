#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/base/socket_address.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "wire.hpp"

namespace ddrun::store {

/// A connected socket whose reads and writes end at a deadline, or when the descriptor `cancel` (-1 for none) becomes
/// readable. Its errors: `timeout`, `cancelled`, `connection_lost`.
class ClientSocket {
 public:
  /// One attempt on one endpoint, until the deadline. In the error, `cause` tells refused from hopeless.
  static Result<ClientSocket> connect(const SocketAddress& server, Deadline deadline, int cancel);

  /// All of `bytes`; whatever the server sends meanwhile stays to be read.
  Result<void> send(std::string_view bytes, Deadline deadline);

  /// Exactly `size` bytes into `to`.
  Result<void> receive(char* to, std::size_t size, Deadline deadline);

  /// `size` bytes behind those in `to`, whose memory grows with what really arrives.
  Result<void> receive(std::string& to, std::size_t size, Deadline deadline);

 private:
  ClientSocket(UniqueFd fd, int cancel) : fd_(std::move(fd)), cancel_(cancel) {}
  Result<void> wait_for(short events, Deadline deadline);

  UniqueFd fd_;
  int cancel_;
  // Read ahead of what was asked for, so that a length and its bytes cost one system call.
  std::vector<char> ahead_;
  std::size_t ahead_begin_ = 0;
  std::size_t ahead_end_ = 0;
};

/// What every call of a client that was cancelled fails with.
[[nodiscard]] tl::unexpected<Error> cancelled();

/// False if `cancel` became readable before then.
[[nodiscard]] bool sleep_until(Deadline when, int cancel);

/// Whether a failed attempt to connect may go better in a moment: nobody listening yet, or cut off by a restart.
[[nodiscard]] bool worth_retrying(const std::error_code& cause);

/// A key as PyTorch's clients send it: with "/" in front.
void put_key(std::string& to, std::string_view key);

/// One greeted connection to a server, for one thread at a time. Keys are those of the user, without "/".
///
/// After `connection_lost`, `protocol` and `cancelled` it is out of step and of no more use: broken().
class ClientConnection {
 public:
  /// Tries the endpoints in turn, again and again, until one answers the greeting. `cancel` as in ClientSocket.
  static Result<std::unique_ptr<ClientConnection>> open(std::span<const SocketAddress> servers, Deadline deadline,
                                                        int cancel);

  [[nodiscard]] const SocketAddress& server() const { return server_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] bool broken() const { return broken_; }

  /// Whether the server may not have seen yet what was sent last.
  [[nodiscard]] bool unconfirmed() const { return unconfirmed_; }

  /// An empty request that begins with `op`.
  std::string& begin(wire::Opcode op);
  /// A request with one key.
  std::string& begin(wire::Opcode op, std::string_view key);
  std::string& begin(wire::Opcode op, std::span<const std::string> keys);

  Result<void> send(Deadline deadline);
  /// For a request without an answer: returns when the server has it.
  Result<void> send_confirmed(Deadline deadline);
  /// Returns when the server has all that was sent so far.
  Result<void> confirm(Deadline deadline);

  template <class Integer>
  Result<Integer> receive(Deadline deadline) {
    Integer number{};
    if (auto ok = receive_raw(reinterpret_cast<char*>(&number), sizeof number, deadline); !ok) {
      return tl::unexpected(std::move(ok.error()));
    }
    return number;
  }
  Result<std::string> receive_bytes(Deadline deadline);

  /// Sends what begin() made, a WAIT or a BARRIER, and sees it through. `timeout`, which says `what` was waited for,
  /// leaves the connection as good as before.
  Result<void> wait(Deadline deadline, const std::string& what);

  tl::unexpected<Error> nonsense(const std::string& what);

  ClientConnection(const SocketAddress& server, ClientSocket socket);

 private:
  Result<void> greet(Deadline deadline);
  Result<void> receive_raw(char* to, std::size_t size, Deadline deadline);
  Result<void> withdraw(const std::string& what);
  tl::unexpected<Error> lost(const Error& error);

  const SocketAddress server_;
  const std::string name_;
  ClientSocket socket_;
  std::string request_;
  Deadline answer_end_{};
  bool unconfirmed_ = false;
  bool broken_ = false;
};

}  // namespace ddrun::store
