#include "shm/staging.hpp"

#include <algorithm>
#include <cstring>

#include "copy.hpp"

namespace ddrun::collectives {

namespace {

/// Whether every rank reduces a slice, and the slices are put together then.
bool sliced(const Call& call) {
  return call.collective == Collective::all_reduce || call.collective == Collective::reduce;
}

}  // namespace

bool Staging::gives(const Call& call, int rank) { return sliced(call) || collectives::gives(call, rank); }

Staging::Staging(std::byte* segment, const Layout& layout, Gate& gate, int rank, int size)
    : segment_(segment),
      layout_(layout),
      gate_(gate),
      rank_(rank),
      size_(size),
      from_(static_cast<std::size_t>(size)),
      places_(static_cast<std::size_t>(size)) {}

Staging::Cut Staging::cut(const Call& call) const {
  const std::size_t element = size_of(call.type);
  const auto ranks = static_cast<std::size_t>(size_);
  Cut cut;
  cut.sliced = sliced(call);
  cut.block = cut.sliced ? round_up((call.count + ranks - 1) / ranks, kApart / element) : call.count;
  const bool many = cut.sliced || blocks_of(call.collective, size_).in > 1;
  cut.stride = many ? layout_.staging_bytes() / ranks / kApart * kApart : layout_.staging_bytes();
  cut.count = cut.stride / element;
  cut.parts = (cut.block + cut.count - 1) / cut.count;
  return cut;
}

Part Staging::part_of(const Cut& cut, std::size_t number) const {
  const std::size_t begin = number * cut.count;
  return {begin, std::min(cut.count, cut.block - begin), cut.stride};
}

Part Staging::slice_of(const Call& call, const Cut& cut, std::size_t number, int owner) const {
  const Part part = part_of(cut, number);
  const std::size_t begin = std::min(call.count, static_cast<std::size_t>(owner) * cut.block + part.begin);
  return {begin, std::min(part.count, call.count - begin), cut.stride};
}

void Staging::give_part(const Call& call, const Cut& cut, std::size_t number) {
  std::byte* const place = given(rank_, turn_);
  if (!cut.sliced) return give(call, rank_, size_, part_of(cut, number), place);
  const std::size_t element = size_of(call.type);
  for (int owner = 0; owner < size_; ++owner) {
    const Part slice = slice_of(call, cut, number, owner);
    if (owner == rank_) continue;
    std::memcpy(place + static_cast<std::size_t>(owner) * slice.stride, call.in + slice.begin * element,
                slice.count * element);
  }
}

void Staging::take_part(const Call& call, const Cut& cut, std::size_t number, Stores stores) {
  for (int rank = 0; rank < size_; ++rank) places_[static_cast<std::size_t>(rank)] = given(rank, turn_ - 1);
  take(call, rank_, part_of(cut, number), places_, from_, stores);
}

void Staging::reduce_slice(const Call& call, const Cut& cut, std::size_t number) {
  const Part slice = slice_of(call, cut, number, rank_);
  for (int rank = 0; rank < size_; ++rank) {
    from_[static_cast<std::size_t>(rank)] =
        rank == rank_ ? call.in + slice.begin * size_of(call.type)
                      : given(rank, turn_ - 1) + static_cast<std::size_t>(rank_) * slice.stride;
  }
  void* out = reduced(rank_, turn_);
  kernels(call.type, call.op).reduce(from_.data(), from_.size(), &out, 1, 0, slice.count, Stores::normal, size_);
}

void Staging::take_slices(const Call& call, const Cut& cut, std::size_t number, Stores stores) {
  if (!gets(call, rank_)) return;
  const std::size_t element = size_of(call.type);
  for (int owner = 0; owner < size_; ++owner) {
    const Part slice = slice_of(call, cut, number, owner);
    copy_bytes(call.out + slice.begin * element, reduced(owner, turn_ - 1), slice.count * element, stores);
  }
}

void Staging::begin(const Call& call) {
  if (gives(call, rank_)) give_part(call, cut(call), 0);
}

Result<void> Staging::run(const Call& call, bool begun, Deadline deadline) {
  const Cut cut = this->cut(call);
  const Stores stores = stores_of(call, size_, in_place(call, rank_, size_));
  const std::size_t last = cut.parts + (cut.sliced ? 1 : 0);
  std::size_t step = 0;
  if (begun) {
    ++turn_;
    ++step;
  }
  for (;; ++step) {
    if (step < cut.parts) give_part(call, cut, step);
    if (step >= 1 && step <= cut.parts) {
      if (cut.sliced) reduce_slice(call, cut, step - 1);
      else take_part(call, cut, step - 1, stores);
    }
    if (cut.sliced && step >= 2) take_slices(call, cut, step - 2, stores);
    if (step == last) return {};
    if (auto passed = gate_.pass(deadline); !passed) return passed;
    ++turn_;
  }
}

}  // namespace ddrun::collectives
