#include "shm_all_reduce.hpp"

#include <algorithm>
#include <cstring>

#include "ddrun/base/text.hpp"

namespace ddrun::collectives {

namespace {

constexpr std::size_t kPage = 4096;
/// Reading everything costs ranks² x size in all, but saves the second gate.
constexpr std::size_t kReadAllBytes = 8 << 10;
constexpr std::size_t kReadAllTotal = 64 << 10;
constexpr std::size_t kStagedCount = (256 << 10) / sizeof(float);
/// Outputs of this size together do not stay in any cache, so they need not be read into one.
constexpr std::size_t kStreamBytes = std::size_t{8} << 20;

constexpr std::size_t round_up(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }

}  // namespace

/// Offsets in the segment.
struct ShmAllReduce::Layout {
  std::size_t lines, slots, staging, buffers, buffer_bytes, end;

  Layout(int size, std::size_t buffer_count) {
    const auto ranks = static_cast<std::size_t>(size);
    lines = round_up(sizeof(Control), kPage);
    slots = round_up(lines + ranks * 2 * sizeof(Line), kPage);
    staging = slots + ranks * 2 * kReadAllBytes;
    buffers = staging + ranks * kStagedCount * sizeof(float);
    buffer_bytes = round_up(buffer_count * sizeof(float), kPage);
    end = buffers + ranks * 2 * buffer_bytes;
  }
  [[nodiscard]] std::size_t slot(int rank, unsigned parity) const {
    return slots + (2 * static_cast<std::size_t>(rank) + parity) * kReadAllBytes;
  }
  [[nodiscard]] std::size_t staged(int rank) const {
    return staging + static_cast<std::size_t>(rank) * kStagedCount * sizeof(float);
  }
  [[nodiscard]] std::size_t buffer(int rank, unsigned which) const {
    return buffers + (2 * static_cast<std::size_t>(rank) + which) * buffer_bytes;
  }
};

std::size_t ShmAllReduce::segment_bytes(int size, std::size_t buffer_count) { return Layout(size, buffer_count).end; }

Result<std::unique_ptr<AllReduce>> ShmAllReduce::start(std::shared_ptr<Segment> segment, int rank,
                                                       const std::vector<int>& pids, std::size_t buffer_count,
                                                       bool crowded) {
  const int size = static_cast<int>(pids.size());
  const Layout layout(size, buffer_count);
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
  std::unique_ptr<ShmAllReduce> made(new ShmAllReduce(std::move(segment), rank, size, buffer_count, crowded));
  std::vector<PeerWatch::Peer> peers;
  for (int peer = 0; peer < size; ++peer) {
    if (peer != rank) peers.push_back({peer, pids[static_cast<std::size_t>(peer)]});
  }
  if (auto watched = made->watch_.start(*made->at<Control>(0), peers); !watched) {
    return tl::unexpected(watched.error());
  }
  return made;
}

ShmAllReduce::ShmAllReduce(std::shared_ptr<Segment> segment, int rank, int size, std::size_t buffer_count, bool crowded)
    : segment_(std::move(segment)),
      rank_(rank),
      size_(size),
      buffer_count_(buffer_count),
      gate_(*at<Control>(0), at<Line>(Layout(size, buffer_count).lines), rank, size, crowded),
      from_(static_cast<std::size_t>(size)),
      to_(static_cast<std::size_t>(size)) {}

ShmAllReduce::~ShmAllReduce() {
  // Whoever still waits for this rank waits in vain; whoever has passed the last gate does not look any more.
  report_lost(*at<Control>(0), rank_);
}

template <class T>
T* ShmAllReduce::at(std::size_t offset) const {
  return reinterpret_cast<T*>(segment_->data() + offset);
}

std::span<float> ShmAllReduce::send_buffer() {
  return {at<float>(Layout(size_, buffer_count_).buffer(rank_, 0)), buffer_count_};
}

std::span<float> ShmAllReduce::recv_buffer() {
  return {at<float>(Layout(size_, buffer_count_).buffer(rank_, 1)), buffer_count_};
}

std::uint64_t ShmAllReduce::offset_of(const float* data, std::size_t count) const {
  const auto start = reinterpret_cast<std::uintptr_t>(segment_->data());
  const auto first = reinterpret_cast<std::uintptr_t>(data);
  if (first < start || first + count * sizeof(float) > start + segment_->size()) return kPrivate;
  return first - start;
}

Result<void> ShmAllReduce::announce(std::span<const float> in, std::span<float> out, Deadline deadline) {
  Line& mine = gate_.mine();
  mine.count = in.size();
  mine.in = offset_of(in.data(), in.size());
  mine.out = offset_of(out.data(), out.size());
  if (auto passed = gate_.pass(deadline); !passed) return passed;
  for (int rank = 0; rank < size_; ++rank) {
    if (gate_.of(rank).count != in.size()) {
      return fail(Errc::invalid_argument, concat("rank ", rank, " sums ", gate_.of(rank).count, " elements, rank ",
                                                 rank_, " ", in.size(), ": all ranks must make the same calls"));
    }
  }
  return {};
}

Result<void> ShmAllReduce::sum(std::span<const float> in, std::span<float> out, Deadline deadline) {
  if (in.size() != out.size()) return fail(Errc::invalid_argument, "input and output differ in size");
  if (state_) state_ = run(in, out, deadline);
  return state_;
}

Result<void> ShmAllReduce::run(std::span<const float> in, std::span<float> out, Deadline deadline) {
  const std::size_t bytes = in.size_bytes();
  if (size_ == 1) {
    if (in.data() != out.data()) std::memcpy(out.data(), in.data(), bytes);
    return {};
  }
  if (bytes <= sizeof(Line::data)) {
    std::copy(in.begin(), in.end(), gate_.mine().data.begin());
  } else if (bytes <= std::min(kReadAllBytes, kReadAllTotal / static_cast<std::size_t>(size_))) {
    const Layout layout(size_, buffer_count_);
    std::memcpy(at<float>(layout.slot(rank_, gate_.parity_ahead())), in.data(), bytes);
  } else {
    if (auto met = announce(in, out, deadline); !met) return met;
    for (int rank = 0; rank < size_; ++rank) {
      const Line& theirs = gate_.of(rank);
      // Anybody's private memory sends everybody the long way round.
      if (theirs.in == kPrivate || theirs.out == kPrivate) return sum_staged(in, out, deadline);
    }
    return sum_slices(in.size(), deadline);
  }
  if (auto met = announce(in, out, deadline); !met) return met;
  read_all(out);
  return {};
}

void ShmAllReduce::read_all(std::span<float> out) {
  const Layout layout(size_, buffer_count_);
  const unsigned parity = gate_.parity_ahead() ^ 1U;
  const auto source = [&](int rank) {
    return out.size_bytes() <= sizeof(Line::data) ? gate_.of(rank).data.data() : at<float>(layout.slot(rank, parity));
  };
  std::copy_n(source(0), out.size(), out.data());
  for (int rank = 1; rank < size_; ++rank) add(out.data(), out.data(), source(rank), out.size());
}

void ShmAllReduce::sum_my_slice(std::size_t count, Stores stores) {
  const std::size_t slice = round_up((count + from_.size() - 1) / from_.size(), kApart / sizeof(float));
  const std::size_t begin = std::min(count, slice * static_cast<std::size_t>(rank_));
  sum_to_all(from_, to_, begin, std::min(count, begin + slice), stores);
}

Result<void> ShmAllReduce::sum_slices(std::size_t count, Deadline deadline) {
  bool in_place = false;
  for (int rank = 0; rank < size_; ++rank) {
    const Line& theirs = gate_.of(rank);
    from_[static_cast<std::size_t>(rank)] = at<float>(theirs.in);
    to_[static_cast<std::size_t>(rank)] = at<float>(theirs.out);
    in_place = in_place || theirs.in == theirs.out;
  }
  const std::size_t output_bytes = count * sizeof(float) * from_.size();
  sum_my_slice(count, !in_place && output_bytes >= kStreamBytes ? Stores::streaming : Stores::normal);
  return gate_.pass(deadline);
}

Result<void> ShmAllReduce::sum_staged(std::span<const float> in, std::span<float> out, Deadline deadline) {
  const Layout layout(size_, buffer_count_);
  for (int rank = 0; rank < size_; ++rank) {
    from_[static_cast<std::size_t>(rank)] = to_[static_cast<std::size_t>(rank)] = at<float>(layout.staged(rank));
  }
  float* const mine = to_[static_cast<std::size_t>(rank_)];
  for (std::size_t done = 0; done < in.size(); done += kStagedCount) {
    const std::size_t count = std::min(kStagedCount, in.size() - done);
    std::memcpy(mine, in.data() + done, count * sizeof(float));
    if (auto filled = gate_.pass(deadline); !filled) return filled;
    sum_my_slice(count, Stores::normal);
    if (auto summed = gate_.pass(deadline); !summed) return summed;
    std::memcpy(out.data() + done, mine, count * sizeof(float));
  }
  return {};
}

}  // namespace ddrun::collectives
