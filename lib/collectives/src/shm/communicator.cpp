#include "shm/communicator.hpp"

#include <algorithm>
#include <cstring>

#include "call_words.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::collectives {

namespace {

/// What all slots that are read in one call may hold together.
constexpr std::size_t kSlotsTotal = 64 << 10;

/// Bytes of a line's data that are free for a call's input.
std::size_t line_bytes(Collective collective) {
  return sizeof(Line::data) - (collective == Collective::send_recv ? sizeof(Partners) : 0);
}

}  // namespace

std::size_t ShmCommunicator::segment_bytes(int size, std::size_t buffer_bytes) {
  return Layout(size, buffer_bytes).end();
}

Result<std::unique_ptr<Communicator>> ShmCommunicator::start(std::shared_ptr<Segment> segment, int rank,
                                                             const std::vector<int>& pids, std::size_t buffer_bytes,
                                                             bool crowded) {
  const int size = static_cast<int>(pids.size());
  const Layout layout(size, buffer_bytes);
  if (segment->size() != layout.end()) {
    return fail(Errc::invalid_argument, concat("rank 0 shares ", segment->size(), " bytes, rank ", rank, " expects ",
                                               layout.end(), ": do all ranks have the same options?"));
  }
  // Each rank its own part, so that the zeroing of pages is shared among the processors.
  if (rank == 0) {
    if (auto done = segment->reserve(0, layout.buffers()); !done) return tl::unexpected(done.error());
  }
  if (auto done = segment->reserve(layout.buffer(rank, 0), layout.buffer(rank, 2) - layout.buffer(rank, 0)); !done) {
    return tl::unexpected(done.error());
  }
  std::unique_ptr<ShmCommunicator> made(new ShmCommunicator(std::move(segment), rank, size, buffer_bytes, crowded));
  std::vector<PeerWatch::Peer> peers;
  for (int peer = 0; peer < size; ++peer) {
    if (peer != rank) peers.push_back({peer, pids[static_cast<std::size_t>(peer)]});
  }
  if (auto watched = made->watch_.start(*made->at<Control>(0), peers); !watched) {
    return tl::unexpected(watched.error());
  }
  return made;
}

ShmCommunicator::ShmCommunicator(std::shared_ptr<Segment> segment, int rank, int size, std::size_t buffer_bytes,
                                 bool crowded)
    : Communicator(rank, size),
      segment_(std::move(segment)),
      layout_(size, buffer_bytes),
      gate_(*at<Control>(0), at<Line>(layout_.lines()), rank, size, crowded),
      direct_(rank, size),
      staging_(segment_->data(), layout_, gate_, rank, size),
      seen_(static_cast<std::size_t>(size)),
      from_(static_cast<std::size_t>(size)),
      places_(static_cast<std::size_t>(size)) {}

ShmCommunicator::~ShmCommunicator() {
  // Whoever still waits for this rank waits in vain; whoever has passed the last gate does not look any more.
  report_lost(*at<Control>(0), rank());
}

std::optional<Error> ShmCommunicator::trouble() { return lost_rank(*at<Control>(0)); }

template <class T>
T* ShmCommunicator::at(std::size_t offset) const {
  return reinterpret_cast<T*>(segment_->data() + offset);
}

std::span<std::byte> ShmCommunicator::send_buffer() { return {at(layout_.buffer(rank(), 0)), layout_.buffer_bytes()}; }

std::span<std::byte> ShmCommunicator::recv_buffer() { return {at(layout_.buffer(rank(), 1)), layout_.buffer_bytes()}; }

std::uint64_t ShmCommunicator::offset_of(const std::byte* data, std::size_t bytes) const {
  const auto start = reinterpret_cast<std::uintptr_t>(segment_->data());
  const auto first = reinterpret_cast<std::uintptr_t>(data);
  if (first < start || first + bytes > start + segment_->size()) return kPrivate;
  return first - start;
}

Seen ShmCommunicator::seen_of(int rank) const {
  const Line& line = gate_.of(rank);
  Seen seen;
  if (line.in != kPrivate) seen.in = at(line.in);
  if (line.out != kPrivate) seen.out = at(line.out);
  std::memcpy(&seen.peers, line.data.data() + line_bytes(Collective::send_recv), sizeof(Partners));
  return seen;
}

Result<void> ShmCommunicator::announce(const Call& call, Deadline deadline) {
  Line& mine = gate_.mine();
  mine.kind = kind_of(call);
  mine.count = call.count;
  if (call.collective == Collective::send_recv) {
    const Partners peers{call.to, call.from};
    std::memcpy(mine.data.data() + line_bytes(call.collective), &peers, sizeof(peers));
  }
  if (auto passed = gate_.pass(deadline); !passed) return passed;
  for (int peer = 0; peer < size(); ++peer) {
    const Line& theirs = gate_.of(peer);
    if (theirs.count != call.count || theirs.kind != kind_of(call)) {
      return different_calls(peer, theirs.kind, theirs.count, rank(), call);
    }
  }
  return call.collective == Collective::send_recv ? compare_peers() : Result<void>();
}

Result<void> ShmCommunicator::compare_peers() const {
  for (int peer = 0; peer < size(); ++peer) {
    const int from = seen_of(peer).peers.from;
    const int to = seen_of(from).peers.to;
    if (to != peer) return not_sent(peer, from, to);
  }
  return {};
}

Result<void> ShmCommunicator::run(const Call& call, Deadline deadline) {
  if (size() == 1) {
    if (call.in != call.out) std::memcpy(call.out, call.in, call.bytes());
    return {};
  }
  const std::size_t bytes = call.bytes() * blocks_of(call.collective, size()).in;
  if (bytes <= line_bytes(call.collective)) return run_small(call, true, deadline);
  if (bytes <= std::min(Layout::kSlotBytes, kSlotsTotal / static_cast<std::size_t>(size()))) {
    return run_small(call, false, deadline);
  }
  return run_large(call, deadline);
}

Result<void> ShmCommunicator::run_small(const Call& call, bool in_lines, Deadline deadline) {
  const Part all{0, call.count, call.bytes()};
  const unsigned parity = gate_.parity_ahead();
  give(call, rank(), size(), all, in_lines ? gate_.mine().data.data() : at(layout_.slot(rank(), parity)));
  if (auto met = announce(call, deadline); !met) return met;
  for (int peer = 0; peer < size(); ++peer) {
    places_[static_cast<std::size_t>(peer)] = in_lines ? gate_.of(peer).data.data() : at(layout_.slot(peer, parity));
  }
  take(call, rank(), all, places_, from_, Stores::normal);
  return {};
}

Result<void> ShmCommunicator::run_large(const Call& call, Deadline deadline) {
  const Blocks blocks = blocks_of(call.collective, size());
  Line& mine = gate_.mine();
  mine.in = offset_of(call.in, call.bytes() * blocks.in);
  mine.out = offset_of(call.out, call.bytes() * blocks.out);
  // Who knows already that it will be so, need not wait until it has been said.
  const Seen own{
      mine.in == kPrivate ? nullptr : at(mine.in), mine.out == kPrivate ? nullptr : at(mine.out), {call.to, call.from}};
  if (DirectWork::out_of_reach(call, rank(), own)) staging_.begin(call);
  if (auto met = announce(call, deadline); !met) return met;
  bool begun = true;
  Call its = call;
  for (int peer = 0; peer < size(); ++peer) {
    Seen& seen = seen_[static_cast<std::size_t>(peer)];
    seen = seen_of(peer);
    its.to = seen.peers.to;
    begun = begun && (!Staging::gives(its, peer) || DirectWork::out_of_reach(call, peer, seen));
  }
  if (!direct_.possible(call, seen_)) return staging_.run(call, begun, deadline);
  direct_.work(call, seen_);
  return gate_.pass(deadline);
}

}  // namespace ddrun::collectives
