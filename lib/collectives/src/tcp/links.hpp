#pragma once

#include <poll.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "ddrun/base/listener.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/collectives/communicator.hpp"

namespace ddrun::collectives {

/// The TCP connections of one rank. A link is directed, from the sender, which connects, to the receiver, and has one
/// or more streams, each a connection. Links of the ring are made at the start, others on demand, which limits
/// descriptors. All are non-blocking, close-on-exec and use TCP_NODELAY. A connection is closed unless it sends the
/// random token from the store within hello_timeout; it never blocks the rank. Addresses are numeric. Not thread-safe.
class TcpLinks {
 public:
  static constexpr int max_streams = 64;

  /// No links: a group of one, or moved from.
  TcpLinks() = default;

  /// Listens on a free port of `group.address`, publishes the endpoint in the store and connects the ring: one stream
  /// to the next rank and one from the previous. Blocks; `timeout` names the missing rank.
  [[nodiscard]] static Result<TcpLinks> connect(const Group& group, Deadline deadline);

  /// Opens the missing ones of the first `streams` streams to `peer`. Blocks for the peer's kernel, not for the peer.
  /// `connection_lost` if the peer no longer listens.
  [[nodiscard]] Result<void> connect(int peer, int streams, Deadline deadline);

  /// Accepts connections and reads hellos; does not block. `unavailable` if no descriptors are left.
  [[nodiscard]] Result<void> accept_pending();
  /// Appends the descriptors whose readiness accept_pending() handles.
  void add_poll_fds(std::vector<pollfd>& polled) const;

  /// The descriptor of a stream to or from `peer`; -1 while there is none.
  [[nodiscard]] int to(int peer, int stream) const { return fd_of(to_, peer, stream); }
  [[nodiscard]] int from(int peer, int stream) const { return fd_of(from_, peer, stream); }

  /// Whether all ranks listen on the same address.
  [[nodiscard]] bool one_machine() const;

  /// Closes all links and the listener; connected peers notice.
  void close();

 private:
  using Streams = std::vector<UniqueFd>;
  struct Endpoint {
    SocketAddress at;
    std::string token;
  };
  /// First message of a connecting peer, in native byte order, as all ranks run the same program.
  struct HelloMessage {
    std::array<char, 32> token;  ///< hexadecimal digits
    std::uint32_t rank;
    std::uint32_t stream;
  };
  /// An accepted connection whose hello is incomplete.
  struct PendingPeer {
    UniqueFd fd;
    std::array<char, sizeof(HelloMessage)> received;
    std::size_t have;
    Deadline deadline;
  };

  [[nodiscard]] static int fd_of(const std::vector<Streams>& all, int peer, int stream);
  [[nodiscard]] Result<Endpoint> endpoint_of(int peer) const;
  [[nodiscard]] tl::unexpected<Error> connect_error(int peer, int error) const;
  [[nodiscard]] Result<void> accept_previous(Deadline deadline);
  enum class Hello { incomplete, valid, invalid };
  [[nodiscard]] Hello read_hello(PendingPeer& peer) const;
  void register_peer(PendingPeer& peer);

  int rank_ = 0;
  int size_ = 1;
  Listener listener_;
  Acceptor acceptor_;
  std::string token_;
  std::vector<std::string> endpoints_;  ///< "address port token" by rank, as published
  std::vector<Streams> to_;             ///< by rank
  std::vector<Streams> from_;
  std::vector<PendingPeer> pending_;
};

/// Detects exited peers and different calls on the reverse direction of links, where a receiver sends only notices.
/// Each rank watches the next one of the ring, whatever else it waits for, and exits if that is lost, so that all ranks
/// notice in turn.
class TcpWatch {
 public:
  TcpWatch(int rank, int size);

  /// Starts the `number`-th call of this rank.
  void begin(const Call& call, std::uint64_t number);

  /// Whether there is a link to `peer` and it has not left.
  [[nodiscard]] bool can_read(const TcpLinks& links, int peer) const;
  /// Reads notices from `peer`; does not block. `connection_lost` if it closed the link without a leave notice,
  /// `invalid_argument` if it makes another call.
  [[nodiscard]] Result<void> read_notices(const TcpLinks& links, int peer);
  /// Whether `peer` has left or exited: it will send nothing more.
  [[nodiscard]] bool has_left(int peer) const { return left_[static_cast<std::size_t>(peer)] != 0; }

  /// Sends this rank's current call to the previous rank. Used after a long wait, once per call.
  void send_call_notice(const TcpLinks& links);
  /// Sends a leave notice to every rank with a link to this one.
  static void send_leave_notice(const TcpLinks& links, int size);

  [[nodiscard]] int next() const { return (rank_ + 1) % size_; }

 private:
  /// In native byte order, as all ranks run the same program.
  struct Notice {
    std::uint64_t call = 0;  ///< number of the call it waits in, or `leaving`
    std::uint64_t kind = 0;
    std::uint64_t count = 0;
  };
  static constexpr std::uint64_t leaving = ~std::uint64_t{0};
  struct PartialNotice {
    std::array<std::byte, sizeof(Notice)> bytes;
    std::size_t have = 0;
  };

  [[nodiscard]] Result<void> compare() const;
  static void send_notice(int fd, const Notice& notice);

  int rank_;
  int size_;
  Call call_;
  std::uint64_t number_ = 0;
  bool notice_sent_ = false;
  std::vector<PartialNotice> partial_;  ///< by rank: an incomplete notice
  std::vector<unsigned char> left_;     ///< by rank
  Notice next_notice_;                  ///< the latest of the next rank
};

}  // namespace ddrun::collectives
