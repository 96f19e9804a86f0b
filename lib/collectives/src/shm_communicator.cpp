#include "shm_communicator.hpp"

#include <algorithm>
#include <cstring>

#include "call_words.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::collectives {

namespace {

constexpr std::size_t kPage = 4096;
/// Reading everything costs ranks² x size in all, but saves the second gate.
constexpr std::size_t kReadAllBytes = 8 << 10;
constexpr std::size_t kReadAllTotal = 64 << 10;
constexpr std::size_t kStagedBytes = 256 << 10;
/// Outputs of this size together do not stay in any cache, so they need not be read into one.
constexpr std::size_t kStreamBytes = std::size_t{8} << 20;

constexpr std::size_t round_up(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }

}  // namespace

/// Offsets in the segment.
struct ShmCommunicator::Layout {
  std::size_t lines, slots, staging, buffers, buffer_bytes, end;

  Layout(int size, std::size_t bytes) {
    const auto ranks = static_cast<std::size_t>(size);
    lines = round_up(sizeof(Control), kPage);
    slots = round_up(lines + ranks * 2 * sizeof(Line), kPage);
    staging = slots + ranks * 2 * kReadAllBytes;
    buffers = staging + ranks * kStagedBytes;
    buffer_bytes = round_up(bytes, kPage);
    end = buffers + ranks * 2 * buffer_bytes;
  }
  [[nodiscard]] std::size_t slot(int rank, unsigned parity) const {
    return slots + (2 * static_cast<std::size_t>(rank) + parity) * kReadAllBytes;
  }
  [[nodiscard]] std::size_t staged(int rank) const { return staging + static_cast<std::size_t>(rank) * kStagedBytes; }
  [[nodiscard]] std::size_t buffer(int rank, unsigned which) const {
    return buffers + (2 * static_cast<std::size_t>(rank) + which) * buffer_bytes;
  }
};

std::size_t ShmCommunicator::segment_bytes(int size, std::size_t buffer_bytes) {
  return Layout(size, buffer_bytes).end;
}

Result<std::unique_ptr<Communicator>> ShmCommunicator::start(std::shared_ptr<Segment> segment, int rank,
                                                             const std::vector<int>& pids, std::size_t buffer_bytes,
                                                             bool crowded) {
  const int size = static_cast<int>(pids.size());
  const Layout layout(size, buffer_bytes);
  if (segment->size() != layout.end) {
    return fail(Errc::invalid_argument, concat("rank 0 shares ", segment->size(), " bytes, rank ", rank, " expects ",
                                               layout.end, ": do all ranks have the same options?"));
  }
  // Each rank its own part, so that the zeroing of pages is shared among the processors.
  if (rank == 0) {
    if (auto done = segment->reserve(0, layout.buffers); !done) return tl::unexpected(done.error());
  }
  if (auto done = segment->reserve(layout.buffer(rank, 0), 2 * layout.buffer_bytes); !done) {
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
      buffer_bytes_(buffer_bytes),
      gate_(*at<Control>(0), at<Line>(Layout(size, buffer_bytes).lines), rank, size, crowded),
      from_(static_cast<std::size_t>(size)),
      to_(static_cast<std::size_t>(size)) {}

ShmCommunicator::~ShmCommunicator() {
  // Whoever still waits for this rank waits in vain; whoever has passed the last gate does not look any more.
  report_lost(*at<Control>(0), rank());
}

std::optional<Error> ShmCommunicator::trouble() { return lost_rank(*at<Control>(0)); }

template <class T>
T* ShmCommunicator::at(std::size_t offset) const {
  return reinterpret_cast<T*>(segment_->data() + offset);
}

std::span<std::byte> ShmCommunicator::send_buffer() {
  return {at(Layout(size(), buffer_bytes_).buffer(rank(), 0)), buffer_bytes_};
}

std::span<std::byte> ShmCommunicator::recv_buffer() {
  return {at(Layout(size(), buffer_bytes_).buffer(rank(), 1)), buffer_bytes_};
}

std::uint64_t ShmCommunicator::offset_of(const std::byte* data, std::size_t bytes) const {
  const auto start = reinterpret_cast<std::uintptr_t>(segment_->data());
  const auto first = reinterpret_cast<std::uintptr_t>(data);
  if (first < start || first + bytes > start + segment_->size()) return kPrivate;
  return first - start;
}

Result<void> ShmCommunicator::announce(const Call& call, Deadline deadline) {
  Line& mine = gate_.mine();
  mine.kind = kind_of(call);
  mine.count = call.count;
  mine.in = offset_of(call.in, call.bytes());
  mine.out = offset_of(call.out, call.bytes());
  if (auto passed = gate_.pass(deadline); !passed) return passed;
  for (int peer = 0; peer < size(); ++peer) {
    const Line& theirs = gate_.of(peer);
    if (theirs.count != call.count || theirs.kind != kind_of(call)) {
      return different_calls(peer, theirs.kind, theirs.count, rank(), call);
    }
  }
  return {};
}

std::string ShmCommunicator::lacks(Collective collective, DataType, ReduceOp, bool) const {
  if (collective == Collective::barrier || collective == Collective::all_reduce) return {};
  return concat("shm has no ", name_of(collective));
}

Result<void> ShmCommunicator::run(const Call& call, Deadline deadline) {
  const std::size_t bytes = call.bytes();
  if (size() == 1) {
    if (call.in != call.out) std::memcpy(call.out, call.in, bytes);
    return {};
  }
  if (bytes <= sizeof(Line::data)) {
    std::copy_n(call.in, bytes, gate_.mine().data.begin());
  } else if (bytes <= std::min(kReadAllBytes, kReadAllTotal / static_cast<std::size_t>(size()))) {
    const Layout layout(size(), buffer_bytes_);
    std::memcpy(at(layout.slot(rank(), gate_.parity_ahead())), call.in, bytes);
  } else {
    if (auto met = announce(call, deadline); !met) return met;
    for (int rank = 0; rank < size(); ++rank) {
      const Line& theirs = gate_.of(rank);
      // Anybody's private memory sends everybody the long way round.
      if (theirs.in == kPrivate || theirs.out == kPrivate) return reduce_staged(call, deadline);
    }
    return reduce_slices(call, deadline);
  }
  if (auto met = announce(call, deadline); !met) return met;
  read_all(call);
  return {};
}

void ShmCommunicator::read_all(const Call& call) {
  const Layout layout(size(), buffer_bytes_);
  const unsigned parity = gate_.parity_ahead() ^ 1U;
  const bool in_lines = call.bytes() <= sizeof(Line::data);
  for (int rank = 0; rank < size(); ++rank) {
    from_[static_cast<std::size_t>(rank)] = in_lines ? gate_.of(rank).data.data() : at(layout.slot(rank, parity));
  }
  void* const out = call.out;
  kernels(call.type, call.op).reduce(from_.data(), from_.size(), &out, 1, 0, call.count, Stores::normal, size());
}

void ShmCommunicator::reduce_my_slice(const Call& call, std::size_t count, Stores stores) {
  const std::size_t slice = round_up((count + from_.size() - 1) / from_.size(), kApart / size_of(call.type));
  const std::size_t begin = std::min(count, slice * static_cast<std::size_t>(rank()));
  const std::size_t end = std::min(count, begin + slice);
  kernels(call.type, call.op).reduce(from_.data(), from_.size(), to_.data(), to_.size(), begin, end, stores, size());
}

Result<void> ShmCommunicator::reduce_slices(const Call& call, Deadline deadline) {
  bool in_place = false;
  for (int rank = 0; rank < size(); ++rank) {
    const Line& theirs = gate_.of(rank);
    from_[static_cast<std::size_t>(rank)] = at(theirs.in);
    to_[static_cast<std::size_t>(rank)] = at(theirs.out);
    in_place = in_place || theirs.in == theirs.out;
  }
  const std::size_t output_bytes = call.bytes() * from_.size();
  reduce_my_slice(call, call.count, !in_place && output_bytes >= kStreamBytes ? Stores::streaming : Stores::normal);
  return gate_.pass(deadline);
}

Result<void> ShmCommunicator::reduce_staged(const Call& call, Deadline deadline) {
  const Layout layout(size(), buffer_bytes_);
  for (int rank = 0; rank < size(); ++rank) {
    to_[static_cast<std::size_t>(rank)] = at(layout.staged(rank));
    from_[static_cast<std::size_t>(rank)] = at(layout.staged(rank));
  }
  void* const mine = to_[static_cast<std::size_t>(rank())];
  for (std::size_t done = 0; done < call.bytes(); done += kStagedBytes) {
    const std::size_t bytes = std::min(kStagedBytes, call.bytes() - done);
    std::memcpy(mine, call.in + done, bytes);
    if (auto filled = gate_.pass(deadline); !filled) return filled;
    reduce_my_slice(call, bytes / size_of(call.type), Stores::normal);
    if (auto reduced = gate_.pass(deadline); !reduced) return reduced;
    std::memcpy(call.out + done, mine, bytes);
  }
  return {};
}

}  // namespace ddrun::collectives
