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

/// The connections of one rank. A link has a direction: the sender connects to the receiver, who answers; it has one
/// or more streams, each a connection. The links of the ring are made at the start, the others when a rank needs
/// them, so that a rank has no more descriptors than its calls ask for. All are non-blocking, close-on-exec and
/// without Nagle's delay. A caller that does not know the random word which was told through the store is hung up on,
/// and so is one that takes long to say it; neither keeps a rank waiting. No name is ever looked up.
class TcpLinks {
 public:
  static constexpr int max_streams = 64;

  /// A group of one, or moved from: no links.
  TcpLinks() = default;

  /// Listens on a free port of `group.address`, tells the others through the store, and connects the ring: one stream
  /// to the next rank and one from the one before. `timeout` names whom it waited for.
  [[nodiscard]] static Result<TcpLinks> connect(const Group& group, Deadline deadline);

  /// Makes what is lacking of the first `streams` streams to `peer`. Waits for the peer's machine, not for the peer:
  /// its queue answers. `connection_lost` if that rank does not listen any more.
  [[nodiscard]] Result<void> connect(int peer, int streams, Deadline deadline);

  /// Answers all who call now; does not wait. `unavailable` when descriptors run out.
  [[nodiscard]] Result<void> accept_pending();
  /// Adds what becomes ready when answer() has something to do.
  void add_poll_fds(std::vector<pollfd>& polled) const;

  /// The descriptor of a stream to or from `peer`; -1 while there is none.
  [[nodiscard]] int to(int peer, int stream) const { return fd_of(to_, peer, stream); }
  [[nodiscard]] int from(int peer, int stream) const { return fd_of(from_, peer, stream); }

  /// Whether all ranks listen on the same address.
  [[nodiscard]] bool one_machine() const;

  /// Hangs up on all ranks and listens no more. All that are connected see it.
  void close();

 private:
  using Streams = std::vector<UniqueFd>;
  struct Endpoint {
    SocketAddress at;
    std::string token;
  };
  /// What a caller says first, in the byte order of the machine: all ranks have the same program.
  struct HelloMessage {
    std::array<char, 32> token;  ///< hexadecimal digits
    std::uint32_t rank;
    std::uint32_t stream;
  };
  /// A caller that has not said yet which rank it is.
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
  [[nodiscard]] Hello read_hello(PendingPeer& pending) const;
  void register_peer(PendingPeer& pending);

  int rank_ = 0;
  int size_ = 1;
  Listener listener_;
  Acceptor acceptor_;
  std::string token_;
  std::vector<std::string> endpoints_;  ///< "address port word" by rank, as it was told
  std::vector<Streams> to_;             ///< by rank
  std::vector<Streams> from_;
  std::vector<PendingPeer> pending_;
};

/// Who is gone and who makes another call, seen at the end of links where no data comes: a link's receiver sends
/// nothing but notices. Each rank watches the next one in the ring, whatever it is waiting for, and leaves when that is
/// lost, so that all learn of it one after the other.
class TcpWatch {
 public:
  TcpWatch(int rank, int size);

  /// The call that this rank is making now, the `number`-th.
  void begin(const Call& call, std::uint64_t number);

  /// Whether there is a link to `peer` to listen on, and nothing final was heard from there.
  [[nodiscard]] bool can_read(const TcpLinks& links, int peer) const;
  /// Takes the notices from `peer`, if there are any; does not block. `connection_lost` if it is gone without a word,
  /// `invalid_argument` if it makes another call.
  [[nodiscard]] Result<void> read_notices(const TcpLinks& links, int peer);
  /// Whether `peer` has left, as it should or not: it will never send anything again.
  [[nodiscard]] bool has_left(int peer) const { return left_[static_cast<std::size_t>(peer)] != 0; }

  /// Tells the rank before which call this is; for who has waited long. Once per call.
  void send_call_notice(const TcpLinks& links);
  /// Tells every rank that has a link to this one that it leaves as it should.
  static void send_leave_notice(const TcpLinks& links, int size);

  [[nodiscard]] int next() const { return (rank_ + 1) % size_; }

 private:
  /// In the byte order of the machine: all ranks have the same program.
  struct Notice {
    std::uint64_t call = 0;  ///< number of the call that it waits in, or leaving
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
  std::vector<PartialNotice> partial_;  ///< by rank: a notice that is not whole yet
  std::vector<unsigned char> left_;     ///< by rank
  Notice next_notice_;                  ///< the last one of the next rank
};

}  // namespace ddrun::collectives
