#pragma once

#include <poll.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tcp/links.hpp"
#include "tcp/peers.hpp"

namespace ddrun::collectives {

/// Messages are divided into chunks, which a link's streams carry in turn. A multiple of every element size.
inline constexpr std::size_t stripe_chunk = 128 << 10;

/// The number of a link's `streams` that a message of `bytes` uses; small messages use one.
[[nodiscard]] constexpr int streams_for(std::size_t bytes, int streams) {
  const std::size_t chunks = std::max<std::size_t>(bytes / (2 * stripe_chunk), 1);
  return static_cast<int>(std::min(chunks, static_cast<std::size_t>(streams)));
}

/// One stream's part of a message and its progress: chunks `stream`, `stream + streams`, ….
class Stripe {
 public:
  Stripe(std::size_t bytes, int stream, int streams)
      : bytes_(bytes),
        chunk_(streams == 1 ? std::max<std::size_t>(bytes, 1) : stripe_chunk),
        skip_(chunk_ * static_cast<std::size_t>(streams - 1)),
        at_(chunk_ * static_cast<std::size_t>(stream)),
        left_(at_ < bytes ? std::min(chunk_, bytes - at_) : 0) {}

  [[nodiscard]] bool done() const { return left_ == 0; }
  /// Position in the message of the next byte.
  [[nodiscard]] std::size_t offset() const { return at_; }
  /// Contiguous bytes from there.
  [[nodiscard]] std::size_t left() const { return left_; }
  /// At most left().
  void advance(std::size_t bytes) {
    at_ += bytes;
    left_ -= bytes;
    if (left_ > 0 || at_ >= bytes_) return;
    at_ += skip_;
    if (at_ < bytes_) left_ = std::min(chunk_, bytes_ - at_);
  }

 private:
  std::size_t bytes_;
  std::size_t chunk_;
  std::size_t skip_;
  std::size_t at_;
  std::size_t left_;
};

struct TransferOptions {
  int streams = 1;    ///< of each link, for large messages
  bool spin = false;  ///< spin before sleeping; only if each rank has its own processor
};

/// Moves bytes over a rank's links in both directions at once, on the calling thread. The first message to each rank in
/// a call carries the call's header, so that different calls are detected. Large messages are striped over all streams
/// of a link.
///
/// Blocks. Fails with `timeout` (names the awaited rank), `connection_lost` (a rank has exited) or `invalid_argument`
/// (another rank makes another call). After a failure only close() is allowed.
class TcpTransfer final : public Peers {
 public:
  TcpTransfer(const Group& group, TcpLinks links, TransferOptions options);

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }

  /// Starts a call; later exchanges belong to it and end by `deadline`.
  void begin(const Call& call, Deadline deadline);
  [[nodiscard]] Result<void> exchange(const Outgoing& out, const Incoming& in) override;

  /// Fails if the next rank has exited or left, or makes another call. Does not block.
  [[nodiscard]] Result<void> check_next_rank();

  /// Sends leave notices, then close().
  void leave();
  /// Closes all links, by which the peers notice a failure.
  void close() { links_.close(); }

 private:
  /// Precedes a call's data, in native byte order, as all ranks run the same program.
  struct Header {
    std::uint64_t kind = 0;
    std::uint64_t count = 0;
  };
  /// One direction of an exchange.
  struct Direction {
    int peer = no_peer;
    std::size_t header_left = 0;  ///< bytes, sent before the data of stream 0
    std::vector<Stripe> stripes;  ///< by stream
    [[nodiscard]] bool done() const;
    [[nodiscard]] bool done(std::size_t stream) const;
  };
  /// Data of a stream received for a RecvSink.
  struct RecvBuffer {
    std::unique_ptr<std::byte[]> data;
    std::size_t pending = 0;  ///< bytes of an incomplete element
  };

  void start(Direction& direction, int peer, std::size_t bytes, std::vector<std::uint64_t>& last_call) const;
  [[nodiscard]] Result<void> send_some(const Outgoing& out, std::size_t stream, bool& progress);
  [[nodiscard]] Result<void> receive_some(const Incoming& in, std::size_t stream, bool& progress);
  [[nodiscard]] std::size_t deliver(const Incoming& in, std::size_t stream, std::size_t got);
  [[nodiscard]] Result<void> wait();
  [[nodiscard]] Result<void> check_slow_peer();
  [[nodiscard]] Result<void> check_sender();
  [[nodiscard]] tl::unexpected<Error> peer_lost(int peer) const;

  int rank_;
  int size_;
  TransferOptions options_;
  TcpLinks links_;
  TcpWatch watch_;
  Call call_;
  std::uint64_t calls_ = 0;
  Deadline deadline_;
  Deadline next_check_;  ///< when check_slow_peer() is due
  Direction out_;
  Direction in_;
  std::vector<std::uint64_t> last_call_sent_;      ///< by rank: the last call whose header was sent to it
  std::vector<std::uint64_t> last_call_received_;  ///< by rank: the last call whose header was received from it
  Header own_header_;
  Header peer_header_;
  std::vector<RecvBuffer> recv_buffers_;  ///< by stream
  std::vector<pollfd> polled_;
};

}  // namespace ddrun::collectives
