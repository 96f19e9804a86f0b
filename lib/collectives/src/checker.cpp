#include "ddrun/collectives/checker.hpp"

#include <algorithm>
#include <array>

namespace ddrun::collectives {

std::vector<Expected> expected_of(const Call& call, int rank, int size, std::uint64_t first) {
  const auto one = [&](int of, std::uint64_t from) { return Expected{0, call.count, of, from}; };
  const std::uint64_t block = first + static_cast<std::uint64_t>(rank) * call.count;
  std::vector<Expected> all;
  switch (call.collective) {
    case Collective::barrier: return {};
    case Collective::all_reduce: return {one(Expected::all_ranks, first)};
    case Collective::reduce:
      if (rank != call.root) return {};
      return {one(Expected::all_ranks, first)};
    case Collective::reduce_scatter: return {one(Expected::all_ranks, block)};
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

namespace {

/// Fill value of outputs, so that unwritten elements are detected.
constexpr std::byte poison_byte{0xa5};
/// A prime, as Sequence requires.
constexpr std::size_t poison_period = 1021;

}  // namespace

Checker::Checker(Memory& memory, int rank, int size, Collective collective, DataType type, ReduceOp op)
    : memory_(memory),
      rank_(rank),
      size_(size),
      element_(size_of(type)),
      pattern_(reduces(collective) ? ExactPattern(rank, size, type, op)
                                   : ExactPattern::for_moved_data(rank, size, type)),
      poison_(DataType::uint8, std::vector<std::byte>(poison_period, poison_byte)) {}

std::span<std::byte> Checker::input(const Call& call) const {
  return {const_cast<std::byte*>(call.in), blocks_of(call.collective, size_).in * call.bytes()};
}

std::span<std::byte> Checker::output(const Call& call) const {
  return {call.out, blocks_of(call.collective, size_).out * call.bytes()};
}

bool Checker::is_out_of_place(const Call& call) const { return !in_place(call, rank_, size_); }

std::span<std::byte> Checker::guard(const Call& call) const {
  // In place, the output may be a block within the input; the byte behind it then belongs to the next block.
  const auto in = input(call);
  const auto out = output(call);
  const bool inside = !is_out_of_place(call) && in.size() > out.size();
  return {inside ? in.data() + in.size() : out.data() + out.size(), guard_bytes};
}

Result<void> Checker::prepare(const Call& call, std::uint64_t first) {
  corrupted_ = false;
  if (is_out_of_place(call) || output(call).size() > input(call).size()) TRY(memory_.set(output(call), poison_byte));
  TRY(memory_.set(guard(call), poison_byte));
  return memory_.fill(input(call), pattern_.mine(), first);
}

Result<std::uint64_t> Checker::count_wrong(const Call& call, std::uint64_t first) {
  std::uint64_t wrong = 0;
  const auto compare = [&](std::span<const std::byte> data, const Sequence& with, std::uint64_t from) -> Result<void> {
    wrong += TRY(memory_.count_wrong(data, with, from));
    return {};
  };
  Result<void> done;
  const auto all = expected_of(call, rank_, size_, first);
  for (const Expected& part : all) {
    const auto data = output(call).subspan(part.begin * element_, part.count * element_);
    if (done) done = compare(data, sequence_of(part.rank), part.first);
  }
  if (is_out_of_place(call)) {
    if (done && all.empty()) done = compare(output(call), poison_, 0);
    if (done && !corrupted_) done = compare(input(call), pattern_.mine(), first);
  }
  if (done) done = compare(guard(call), poison_, 0);
  TRY(done);
  return wrong;
}

const Sequence& Checker::sequence_of(int rank) {
  if (rank == Expected::all_ranks) return pattern_.reduction();
  if (rank == rank_) return pattern_.mine();
  const auto known = others_.find(rank);
  return known != others_.end() ? known->second : others_.emplace(rank, pattern_.contribution_of(rank)).first->second;
}

Result<void> Checker::corrupt(const Call& call) {
  corrupted_ = true;
  const auto data = input(call);
  const auto one = data.subspan(data.size() / element_ / 2 * element_, element_);
  std::array<std::byte, sizeof(std::uint64_t)> element{};
  const auto value = std::span(element).first(element_);
  TRY(memory_.read(value, one));
  pattern_.corrupt(value, 0);
  return memory_.write(one, value);
}

namespace {

class HostMemory final : public Memory {
 public:
  Result<void> fill(std::span<std::byte> data, const Sequence& sequence, std::uint64_t first) override {
    sequence.fill(data, first);
    return {};
  }
  Result<std::uint64_t> count_wrong(std::span<const std::byte> data, const Sequence& sequence,
                                    std::uint64_t first) override {
    return sequence.count_wrong(data, first);
  }
  Result<void> set(std::span<std::byte> data, std::byte value) override {
    std::fill(data.begin(), data.end(), value);
    return {};
  }
  Result<void> read(std::span<std::byte> to, std::span<const std::byte> from) override {
    std::copy(from.begin(), from.end(), to.begin());
    return {};
  }
  Result<void> write(std::span<std::byte> to, std::span<const std::byte> from) override { return read(to, from); }
};

}  // namespace

Memory& host_memory() {
  static HostMemory memory;
  return memory;
}

}  // namespace ddrun::collectives
