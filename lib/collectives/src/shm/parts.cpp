#include "shm/parts.hpp"

#include <cstring>

#include "copy.hpp"

namespace ddrun::collectives {

namespace {

/// Outputs of this size together do not stay in any cache.
constexpr std::size_t kStreamBytes = std::size_t{8} << 20;

bool root_alone_gets(Collective collective) {
  return collective == Collective::reduce || collective == Collective::gather;
}

}  // namespace

bool gives(const Call& call, int rank) {
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

bool gets(const Call& call, int rank) {
  return call.collective != Collective::barrier && (rank == call.root || !root_alone_gets(call.collective));
}

void give(const Call& call, int rank, int size, const Part& part, std::byte* place) {
  if (!gives(call, rank)) return;
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

void take(const Call& call, int rank, const Part& part, std::span<const std::byte* const> places,
          std::span<const void*> from, Stores stores) {
  if (!gets(call, rank)) return;
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
  const std::size_t outputs =
      blocks_of(call.collective, size).out * (root_alone_gets(call.collective) ? 1 : static_cast<std::size_t>(size));
  return outputs * call.bytes() >= kStreamBytes ? Stores::streaming : Stores::normal;
}

}  // namespace ddrun::collectives
