#include "ddrun/collectives/communicator.hpp"
#include "ddrun/collectives/pattern.hpp"

namespace ddrun::collectives {

std::vector<Expected> expected_of(const Call& call, int rank, int size, std::uint64_t first) {
  const auto one = [&](int of, std::uint64_t from) { return Expected{0, call.count, of, from}; };
  const std::uint64_t block = first + static_cast<std::uint64_t>(rank) * call.count;
  std::vector<Expected> all;
  switch (call.collective) {
    case Collective::barrier: return {};
    case Collective::all_reduce: return {one(Expected::kReduction, first)};
    case Collective::reduce:
      if (rank != call.root) return {};
      return {one(Expected::kReduction, first)};
    case Collective::reduce_scatter: return {one(Expected::kReduction, block)};
    case Collective::broadcast: return {one(call.root, first)};
    case Collective::scatter: return {one(call.root, block)};
    case Collective::send_recv: return {one(call.from, first)};
    case Collective::gather:
      if (rank != call.root) return {};
      [[fallthrough]];
    case Collective::all_gather:
      for (int of = 0; of < size; ++of) all.push_back(one(of, first));
      break;
    case Collective::all_to_all:
      for (int of = 0; of < size; ++of) all.push_back(one(of, block));
      break;
  }
  for (std::size_t i = 0; i < all.size(); ++i) all[i].begin = i * call.count;
  return all;
}

}  // namespace ddrun::collectives
