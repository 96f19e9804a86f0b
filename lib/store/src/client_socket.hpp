#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/base/socket_address.hpp"
#include "ddrun/base/unique_fd.hpp"

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

}  // namespace ddrun::store
