#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include "ddrun/collectives/checker.hpp"
#include "ddrun/collectives/communicator.hpp"
#include "ddrun/test/catch.hpp"
#include "ranks.hpp"

using namespace ddrun;
using namespace ddrun::collectives;
using ddrun::test::in_time;
using ddrun::test::run_ranks;

namespace {

constexpr int kRanks = 3;
constexpr std::size_t kCount = ddrun::test::kSanitized ? 501 : 1501;
constexpr std::size_t kChunk = 64;
constexpr int kFaulty = 1;      // the rank with the fault
constexpr int kFaultyCall = 3;  // the call with the fault

enum class Fault {
  none,
  bit_flip,           ///< in the result
  other_ranks_data,   ///< contributes the next rank's data
  swapped_blocks,     ///< swaps the first two blocks of a result
  lost_chunk,         ///< a chunk of the result is not written
  lost_contribution,  ///< a chunk of the input is missing
  stale_result,
  overrun,            ///< a byte behind the result is written
  overwritten_input,  ///< a byte of the input is changed
};

/// A call, on memory of the back end.
struct CallSpec {
  Backend backend = Backend::shm;
  Collective collective = Collective::all_reduce;
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  bool in_place = false;
  int root = kFaulty;

  [[nodiscard]] Blocks blocks() const { return blocks_of(collective, kRanks); }
  [[nodiscard]] std::size_t buffer_bytes() const {
    return std::max(blocks().in, blocks().out) * kCount * size_of(type) + Checker::guard_bytes;
  }
  [[nodiscard]] Call call(Communicator& all) const {
    Call call{collective, type, op, kCount, all.send_buffer().data(), all.recv_buffer().data(), root};
    call.to = (all.rank() + 1) % kRanks;
    call.from = (all.rank() + kRanks - 1) % kRanks;
    if (!in_place) return call;
    const std::size_t mine = static_cast<std::size_t>(all.rank()) * call.bytes();
    call.in = blocks().out > blocks().in ? call.out + mine : call.out;
    if (blocks().in > blocks().out) call.out += mine;
    return call;
  }
};

std::string describe(const CallSpec& spec) {
  return concat(name_of(spec.backend), ' ', name_of(spec.collective), " of ", name_of(spec.type), ' ', name_of(spec.op),
                spec.in_place ? " in place" : "");
}

/// Injects one fault into one call of its rank.
class InjectedFault final : public FaultInjector {
 public:
  explicit InjectedFault(Fault fault) : fault_(fault) {}

  /// Restarts the count of calls.
  void begin(const CallSpec& spec) {
    calls_ = 0;
    next_.emplace(host_memory(), (kFaulty + 1) % kRanks, kRanks, spec.collective, spec.type, spec.op);
  }

  const std::byte* replace_input(const Call& call) override {
    ++calls_;
    const Blocks blocks = blocks_of(call.collective, kRanks);
    before_.assign(call.out, call.out + blocks.out * call.bytes());
    if (calls_ != kFaultyCall) return call.in;
    input_.assign(call.in, call.in + blocks.in * call.bytes());
    if (fault_ == Fault::other_ranks_data) {
      std::vector<std::byte> scratch_output(blocks.out * call.bytes() + Checker::guard_bytes);
      Call theirs = call;
      input_.resize(input_.size() + Checker::guard_bytes);
      theirs.in = input_.data();
      theirs.out = scratch_output.data();
      if (!next_->prepare(theirs, kFaultyCall)) return nullptr;
      return input_.data();
    }
    if (fault_ == Fault::lost_contribution) {
      // As if a chunk came from an unfilled buffer.
      std::fill_n(input_.begin(), kChunk * size_of(call.type), std::byte{0});
      return input_.data();
    }
    return call.in;
  }

  void corrupt_output(const Call& call) override {
    const std::size_t bytes = blocks_of(call.collective, kRanks).out * call.bytes();
    if (calls_ == kFaultyCall) {
      const std::size_t element = size_of(call.type);
      if (fault_ == Fault::bit_flip) call.out[bytes / element / 2 * element] ^= std::byte{1};
      if (fault_ == Fault::lost_chunk) std::copy_n(before_.data(), kChunk * element, call.out);
      if (fault_ == Fault::stale_result) std::copy(last_.begin(), last_.end(), call.out);
      if (fault_ == Fault::overrun) call.out[bytes] = std::byte{0};
      if (fault_ == Fault::overwritten_input) const_cast<std::byte*>(call.in)[5] ^= std::byte{0x80};
      if (fault_ == Fault::swapped_blocks && bytes > call.bytes())
        std::swap_ranges(call.out, call.out + call.bytes(), call.out + call.bytes());
    }
    last_.assign(call.out, call.out + bytes);
  }

 private:
  Fault fault_;
  std::optional<Checker> next_;
  int calls_ = 0;
  std::vector<std::byte> input_;
  std::vector<std::byte> before_;
  std::vector<std::byte> last_;
};

using Wrong = std::vector<std::size_t>;

/// Wrong elements on this rank in the faulty call; earlier calls must have none.
Result<std::size_t> try_one(Communicator& all, const CallSpec& spec) {
  Checker checker(all.memory(), all.rank(), kRanks, spec.collective, spec.type, spec.op);
  const Call call = spec.call(all);
  std::size_t wrong = 0;
  for (std::uint64_t iteration = 1; iteration <= kFaultyCall; ++iteration) {
    if (auto ready = checker.prepare(call, iteration); !ready) return tl::unexpected(ready.error());
    if (auto done = all.perform(call, in_time()); !done) return tl::unexpected(done.error());
    const auto found = checker.count_wrong(call, iteration);
    if (!found) return found;
    if (iteration < kFaultyCall && *found != 0) {
      return fail(Errc::protocol, concat(*found, " are wrong in iteration ", iteration));
    }
    wrong = *found;
    // Keeps ranks from starting the next call during a check.
    if (auto synced = all.barrier(in_time()); !synced) return tl::unexpected(synced.error());
  }
  return wrong;
}

/// Wrong elements by call and rank; all calls use the first one's back end. Empty for unsupported calls.
std::vector<Wrong> wrong_with(Fault fault, const std::vector<CallSpec>& all) {
  std::vector<Wrong> wrong(all.size(), Wrong(kRanks));
  std::vector<int> is_unsupported(all.size());
  std::size_t most = 0;
  for (const CallSpec& spec : all) most = std::max(most, spec.buffer_bytes());
  const auto problems = run_ranks(kRanks, [&](const Group& group) -> std::string {
    InjectedFault injected(group.rank == kFaulty ? fault : Fault::none);
    CommunicatorOptions options{all[0].backend, most};
    options.fault_injector = &injected;
    auto connected = connect(group, options, in_time());
    if (!connected) return connected.error().message;
    Communicator& communicator = *connected->communicator;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const CallSpec& spec = all[i];
      if (!communicator.unsupported_reason(spec.collective, spec.type, spec.op, spec.in_place).empty()) {
        if (group.rank == 0) is_unsupported[i] = 1;
        continue;
      }
      injected.begin(spec);
      const auto seen = try_one(communicator, spec);
      if (!seen) return concat(describe(spec), ": ", seen.error().message);
      wrong[i][static_cast<std::size_t>(group.rank)] = *seen;
    }
    return {};
  });
  CHECK(problems == std::vector<std::string>(kRanks));
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (is_unsupported[i] != 0) wrong[i].clear();
  }
  return wrong;
}

/// Calls `body` for all supported combinations.
template <class Body>
void for_everything(Fault fault, bool in_place_too, Body body) {
  for (const Backend backend : {Backend::shm, Backend::tcp}) {
    std::vector<CallSpec> all;
    for (const Collective collective : all_collectives) {
      if (collective == Collective::barrier) continue;
      for (const DataType type : all_types) {
        // All operations, but not each with every type.
        const auto turn = static_cast<std::size_t>(type) + static_cast<std::size_t>(collective);
        const ReduceOp op = reduces(collective) ? all_ops[turn % all_ops.size()] : ReduceOp::sum;
        all.push_back({backend, collective, type, op, false});
        if (in_place_too) all.push_back({backend, collective, type, op, true});
      }
    }
    const std::vector<Wrong> wrong = wrong_with(fault, all);
    for (std::size_t i = 0; i < all.size(); ++i) {
      CAPTURE(describe(all[i]));
      if (!wrong[i].empty()) body(all[i], wrong[i]);
    }
  }
}

/// Ranks that receive data of the faulty rank, which is the root.
Wrong receivers(Collective collective) {
  switch (collective) {
    case Collective::reduce:
    case Collective::gather: return {0, 1, 0};
    case Collective::send_recv: return {0, 0, 1};
    default: return {1, 1, 1};
  }
}

}  // namespace

TEST_CASE("a flipped bit in a result, a byte behind it and a changed input are one wrong element each") {
  const Fault fault = GENERATE(Fault::bit_flip, Fault::overrun, Fault::overwritten_input);
  for_everything(fault, false, [](const CallSpec&, const Wrong& wrong) { CHECK(wrong == Wrong{0, 1, 0}); });
}

TEST_CASE("another rank's data is detected on all receiving ranks", "[full]") {
  for_everything(Fault::other_ranks_data, false, [](const CallSpec& spec, const Wrong& wrong) {
    const Wrong receives = receivers(spec.collective);
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      CAPTURE(rank, wrong[rank]);
      if (receives[rank] == 0) CHECK(wrong[rank] == 0);
      if (receives[rank] == 0) continue;
      // For max and min, only where one of two ranks has the extreme value.
      if (reduces(spec.collective)) CHECK(wrong[rank] > kCount / 5);
      if (!reduces(spec.collective)) CHECK(wrong[rank] == kCount);
    }
  });
}

TEST_CASE("swapped blocks are wrong at every element", "[full]") {
  for_everything(Fault::swapped_blocks, false, [](const CallSpec& spec, const Wrong& wrong) {
    if (spec.blocks().out > 1) CHECK(wrong[kFaulty] > 2 * kCount * 9 / 10);
    // With 256 values, one in 256 elements is equal by chance.
    if (spec.blocks().out > 1 && spec.collective != Collective::all_to_all) CHECK(wrong[kFaulty] == 2 * kCount);
  });
}

TEST_CASE("a lost chunk of a result is detected by its rank", "[full]") {
  for_everything(Fault::lost_chunk, true, [](const CallSpec& spec, const Wrong& wrong) {
    CHECK(wrong[0] + wrong[2] == 0);
    // In place, a root's result may be its own input, of which nothing can be lost.
    const bool kept =
        spec.in_place && (spec.collective == Collective::broadcast || spec.collective == Collective::scatter);
    if (kept) return;
    CHECK(wrong[kFaulty] > kChunk / 2);
    CHECK(wrong[kFaulty] <= kChunk);
  });
}

TEST_CASE("a lost chunk of a contribution is detected on all receiving ranks", "[full]") {
  for_everything(Fault::lost_contribution, false, [](const CallSpec& spec, const Wrong& wrong) {
    // The chunk is in the first block, which some collectives send to the first rank only.
    Wrong receives = receivers(spec.collective);
    if (spec.blocks().in > 1) receives = {1, 0, 0};
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      CAPTURE(rank, wrong[rank]);
      if (receives[rank] == 0) CHECK(wrong[rank] == 0);
      if (receives[rank] == 0) continue;
      CHECK(wrong[rank] > kChunk / 5);
      if (!reduces(spec.collective)) CHECK(wrong[rank] > kChunk * 9 / 10);
      CHECK(wrong[rank] <= kChunk);
    }
  });
}

TEST_CASE("a stale result of the previous iteration is wrong at every element", "[full]") {
  for_everything(Fault::stale_result, false, [](const CallSpec& spec, const Wrong& wrong) {
    CHECK(wrong == Wrong{0, spec.blocks().out * kCount, 0});
  });
}

TEST_CASE("the output of ranks other than the root must not change") {
  for (const Backend backend : {Backend::shm, Backend::tcp}) {
    for (const Collective collective : {Collective::reduce, Collective::gather}) {
      CallSpec spec{backend, collective};
      spec.root = 0;
      CAPTURE(describe(spec));
      const Wrong wrong = wrong_with(Fault::bit_flip, {spec})[0];
      if (wrong.empty()) continue;
      CHECK(wrong == Wrong{0, 1, 0});
      CHECK(wrong_with(Fault::none, {spec})[0] == Wrong{0, 0, 0});
    }
  }
}
