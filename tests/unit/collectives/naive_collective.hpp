#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "ddrun/collectives/communicator.hpp"
#include "naive.hpp"

namespace ddrun::test {

using collectives::Call;
using collectives::Collective;

using Bytes = std::vector<std::byte>;

/// Random input of `rank`, reproducible. Floating values are ±1/2, ±1 or ±2, so that sums and products of a few of them
/// need no rounding in any order.
inline Bytes random_input(DataType type, std::size_t elements, std::uint64_t seed, int rank) {
  Bytes data(elements * collectives::size_of(type));
  std::uint64_t state = seed * 0x9e3779b97f4a7c15U + static_cast<std::uint64_t>(rank) + 1;
  const auto next = [&state] {
    state ^= state << 13U;
    state ^= state >> 7U;
    state ^= state << 17U;
    return state * 0x2545f4914f6cdd1dU >> 16U;
  };
  for (int i = 0; i < 4; ++i) (void)next();
  constexpr std::array kNumbers{-2.0F, -1.0F, -0.5F, 0.5F, 1.0F, 2.0F};
  const std::size_t size = collectives::size_of(type);
  for (std::size_t i = 0; i < elements; ++i) {
    std::byte* const to = data.data() + i * size;
    const std::uint64_t random = next();
    const float number = kNumbers[random % kNumbers.size()];
    const auto put = [&](auto value) { std::memcpy(to, &value, sizeof(value)); };
    switch (type) {
      case DataType::float16: put(encode(number, 10, 5)); break;
      case DataType::bfloat16: put(encode(number, 7, 8)); break;
      case DataType::float32: put(number); break;
      case DataType::float64: put(double{number}); break;
      default: std::memcpy(to, &random, size);
    }
  }
  return data;
}

/// The output of `rank` by definition; `in` are all ranks' inputs. Empty without an output.
inline Bytes naive_output(const Call& call, int rank, const std::vector<Bytes>& in) {
  const int size = static_cast<int>(in.size());
  const std::size_t bytes = call.bytes();
  const auto block_of = [&](int of, int which) {
    const auto begin = in[static_cast<std::size_t>(of)].begin() + static_cast<std::ptrdiff_t>(bytes) * which;
    return Bytes(begin, begin + static_cast<std::ptrdiff_t>(bytes));
  };
  const auto reduced = [&](int which) {
    Bytes out(bytes);
    std::vector<const std::byte*> elements(in.size());
    for (std::size_t at = 0; at < bytes; at += collectives::size_of(call.type)) {
      for (std::size_t k = 0; k < in.size(); ++k) {
        elements[k] = in[k].data() + bytes * static_cast<std::size_t>(which) + at;
      }
      naive_element(call.type, call.op, elements, out.data() + at, size);
    }
    return out;
  };
  const auto all = [&](int which) {
    Bytes out;
    for (int of = 0; of < size; ++of) {
      const Bytes block = block_of(of, which);
      out.insert(out.end(), block.begin(), block.end());
    }
    return out;
  };
  switch (call.collective) {
    case Collective::barrier: return {};
    case Collective::all_reduce: return reduced(0);
    case Collective::broadcast: return block_of(call.root, 0);
    case Collective::reduce: return rank == call.root ? reduced(0) : Bytes();
    case Collective::all_gather: return all(0);
    case Collective::reduce_scatter: return reduced(rank);
    case Collective::gather: return rank == call.root ? all(0) : Bytes();
    case Collective::scatter: return block_of(call.root, rank);
    case Collective::all_to_all: return all(rank);
    case Collective::send_recv: return block_of(call.from, 0);
  }
  return {};
}

}  // namespace ddrun::test
