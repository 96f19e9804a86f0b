#include "shm/staging.hpp"

#include <algorithm>
#include <cstring>

#include "copy.hpp"

namespace ddrun::collectives {

namespace {

/// Outputs of this total size exceed any cache.
constexpr std::size_t stream_bytes = std::size_t{8} << 20;

bool only_root_has_output(Collective collective) {
  return collective == Collective::reduce || collective == Collective::gather;
}

}  // namespace

bool has_input(const Call& call, int rank) {
  switch (call.collective) {
    case Collective::barrier: return false;
    case Collective::broadcast:
    case Collective::scatter: return rank == call.root;
    case Collective::reduce:
    case Collective::gather: return rank != call.root;
    case Collective::send_recv: return rank != call.to;
    default: return true;
  }
}

bool has_output(const Call& call, int rank) {
  return call.collective != Collective::barrier && (rank == call.root || !only_root_has_output(call.collective));
}

void pack(const Call& call, int rank, int size, const Part& part, std::byte* place) {
  if (!has_input(call, rank)) return;
  const std::size_t element = size_of(call.type);
  const std::byte* const in = call.in + part.begin * element;
  if (blocks_of(call.collective, size).in == 1) {
    std::memcpy(place, in, part.count * element);
    return;
  }
  for (int to = 0; to < size; ++to) {
    const auto block = static_cast<std::size_t>(to);
    if (to != rank) std::memcpy(place + block * part.stride, in + block * call.bytes(), part.count * element);
  }
}

void unpack(const Call& call, int rank, const Part& part, std::span<const std::byte* const> places,
            std::span<const void*> from, Stores stores) {
  if (!has_output(call, rank)) return;
  const std::size_t element = size_of(call.type);
  const std::size_t begin = part.begin * element;
  const std::size_t bytes = part.count * element;
  const Blocks blocks = blocks_of(call.collective, static_cast<int>(places.size()));
  const std::size_t mine = blocks.in == 1 ? 0 : static_cast<std::size_t>(rank);
  const auto source = [&](std::size_t of) {
    return static_cast<int>(of) == rank ? call.in + mine * call.bytes() + begin : places[of] + mine * part.stride;
  };
  if (reduces(call.collective)) {
    for (std::size_t of = 0; of < places.size(); ++of) from[of] = source(of);
    void* out = call.out + begin;
    kernels(call.type, call.op)
        .reduce(from.data(), from.size(), &out, 1, 0, part.count, stores, static_cast<int>(places.size()));
  } else if (blocks.out == 1) {
    const int of = call.collective == Collective::send_recv ? call.from : call.root;
    copy_bytes(call.out + begin, source(static_cast<std::size_t>(of)), bytes, stores);
  } else {
    for (std::size_t of = 0; of < places.size(); ++of) {
      copy_bytes(call.out + of * call.bytes() + begin, source(of), bytes, stores);
    }
  }
}

Stores stores_of(const Call& call, int size, bool in_place) {
  if (in_place && reduces(call.collective)) return Stores::normal;
  const std::size_t outputs = blocks_of(call.collective, size).out *
                              (only_root_has_output(call.collective) ? 1 : static_cast<std::size_t>(size));
  return outputs * call.bytes() >= stream_bytes ? Stores::streaming : Stores::normal;
}

namespace {

/// Whether each rank reduces a slice and the slices are then combined.
bool sliced(const Call& call) {
  return call.collective == Collective::all_reduce || call.collective == Collective::reduce;
}

}  // namespace

bool Staging::has_input(const Call& call, int rank) { return sliced(call) || collectives::has_input(call, rank); }

Staging::Staging(std::byte* segment, const Layout& layout, ShmBarrier& barrier, int rank, int size)
    : segment_(segment),
      layout_(layout),
      barrier_(barrier),
      rank_(rank),
      size_(size),
      from_(static_cast<std::size_t>(size)),
      places_(static_cast<std::size_t>(size)) {}

Staging::Cut Staging::cut(const Call& call) const {
  const std::size_t element = size_of(call.type);
  const auto ranks = static_cast<std::size_t>(size_);
  Cut cut;
  cut.sliced = sliced(call);
  cut.block = cut.sliced ? round_up((call.count + ranks - 1) / ranks, lines_apart / element) : call.count;
  const bool many = cut.sliced || blocks_of(call.collective, size_).in > 1;
  cut.stride = many ? layout_.staging_bytes() / ranks / lines_apart * lines_apart : layout_.staging_bytes();
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

void Staging::pack_part(const Call& call, const Cut& cut, std::size_t number) {
  std::byte* const place = packed(rank_, round_);
  if (!cut.sliced) return pack(call, rank_, size_, part_of(cut, number), place);
  const std::size_t element = size_of(call.type);
  for (int owner = 0; owner < size_; ++owner) {
    const Part slice = slice_of(call, cut, number, owner);
    if (owner == rank_) continue;
    std::memcpy(place + static_cast<std::size_t>(owner) * slice.stride, call.in + slice.begin * element,
                slice.count * element);
  }
}

void Staging::unpack_part(const Call& call, const Cut& cut, std::size_t number, Stores stores) {
  for (int rank = 0; rank < size_; ++rank) places_[static_cast<std::size_t>(rank)] = packed(rank, round_ - 1);
  unpack(call, rank_, part_of(cut, number), places_, from_, stores);
}

void Staging::reduce_slice(const Call& call, const Cut& cut, std::size_t number) {
  const Part slice = slice_of(call, cut, number, rank_);
  for (int rank = 0; rank < size_; ++rank) {
    from_[static_cast<std::size_t>(rank)] =
        rank == rank_ ? call.in + slice.begin * size_of(call.type)
                      : packed(rank, round_ - 1) + static_cast<std::size_t>(rank_) * slice.stride;
  }
  void* out = reduced(rank_, round_);
  kernels(call.type, call.op).reduce(from_.data(), from_.size(), &out, 1, 0, slice.count, Stores::normal, size_);
}

void Staging::unpack_slices(const Call& call, const Cut& cut, std::size_t number, Stores stores) {
  if (!has_output(call, rank_)) return;
  const std::size_t element = size_of(call.type);
  for (int owner = 0; owner < size_; ++owner) {
    const Part slice = slice_of(call, cut, number, owner);
    copy_bytes(call.out + slice.begin * element, reduced(owner, round_ - 1), slice.count * element, stores);
  }
}

void Staging::begin(const Call& call) {
  if (has_input(call, rank_)) pack_part(call, cut(call), 0);
}

Result<void> Staging::run(const Call& call, bool begun, Deadline deadline) {
  const Cut cut = this->cut(call);
  const Stores stores = stores_of(call, size_, in_place(call, rank_, size_));
  const std::size_t last = cut.parts + (cut.sliced ? 1 : 0);
  std::size_t step = 0;
  if (begun) {
    ++round_;
    ++step;
  }
  for (;; ++step) {
    if (step < cut.parts) pack_part(call, cut, step);
    if (step >= 1 && step <= cut.parts) {
      if (cut.sliced) reduce_slice(call, cut, step - 1);
      else unpack_part(call, cut, step - 1, stores);
    }
    if (cut.sliced && step >= 2) unpack_slices(call, cut, step - 2, stores);
    if (step == last) return {};
    TRY(barrier_.wait(deadline));
    ++round_;
  }
}

}  // namespace ddrun::collectives
