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
/// or more streams, each a connection. The links of the ring are made at the start, the others when somebody needs
/// them, so that a rank has no more descriptors than its calls ask for. All are non-blocking, close-on-exec and
/// without Nagle's delay. A caller that does not know the random word which was told through the store is hung up on,
/// and so is one that takes long to say it; neither keeps anybody waiting. No name is ever looked up.
class TcpLinks {
 public:
  static constexpr int kMostStreams = 64;

  /// A group of one, or moved from: no links.
  TcpLinks() = default;

  /// Listens on a free port of `group.address`, tells the others through the store, and connects the ring: one stream
  /// to the next rank and one from the one before. `timeout` names whom it waited for.
  [[nodiscard]] static Result<TcpLinks> connect(const Group& group, Deadline deadline);

  /// Makes what is lacking of the first `streams` streams to `peer`. Waits for the peer's machine, not for the peer:
  /// its queue answers. `connection_lost` if nobody listens there any more.
  [[nodiscard]] Result<void> call(int peer, int streams, Deadline deadline);

  /// Answers everybody who calls now; does not wait. `unavailable` when descriptors run out.
  [[nodiscard]] Result<void> answer();
  /// Adds what becomes ready when answer() has something to do.
  void poll_for_callers(std::vector<pollfd>& polled) const;

  /// The descriptor of a stream to or from `peer`; -1 while there is none.
  [[nodiscard]] int to(int peer, int stream) const { return of(to_, peer, stream); }
  [[nodiscard]] int from(int peer, int stream) const { return of(from_, peer, stream); }

  /// Whether all ranks listen on the same address.
  [[nodiscard]] bool one_machine() const;

  /// Hangs up on everybody and listens no more. Everybody connected sees it.
  void close();

 private:
  using Streams = std::vector<UniqueFd>;
  struct Place {
    SocketAddress at;
    std::string word;
  };
  /// What a caller says first, in the byte order of the machine: all ranks have the same program.
  struct Hello {
    std::array<char, 32> word;  ///< hexadecimal digits
    std::uint32_t rank;
    std::uint32_t stream;
  };
  /// Somebody of whom it is not known yet who it is.
  struct Caller {
    UniqueFd fd;
    std::array<char, sizeof(Hello)> said;
    std::size_t have;
    Deadline until;
  };

  [[nodiscard]] static int of(const std::vector<Streams>& all, int peer, int stream);
  [[nodiscard]] Result<Place> place_of(int peer) const;
  [[nodiscard]] Result<void> wait_for_previous(Deadline deadline);
  enum class Heard { more, friendly, stranger };
  [[nodiscard]] Heard listen_to(Caller& caller) const;
  void welcome(Caller& caller);

  int rank_ = 0;
  int size_ = 1;
  Listener listener_;
  Acceptor acceptor_;
  std::string word_;
  std::vector<std::string> places_;  ///< "address port word" by rank, as it was told
  std::vector<Streams> to_;          ///< by rank
  std::vector<Streams> from_;
  std::vector<Caller> callers_;
};

}  // namespace ddrun::collectives
