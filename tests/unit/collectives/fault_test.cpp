#include <algorithm>
#include <cstring>
#include <memory>

#include "ddrun/collectives/communicator.hpp"
#include "ddrun/collectives/pattern.hpp"
#include "ddrun/test/catch.hpp"
#include "ranks.hpp"

using namespace ddrun;
using namespace ddrun::collectives;
using ddrun::test::in_time;
using ddrun::test::run_ranks;

namespace {

constexpr int kRanks = 3;
constexpr std::size_t kCount = 3001;
constexpr std::size_t kChunk = 64;
constexpr int kFaulty = 1;  // the rank that makes the mistake

enum class Fault { none, bit_flip, other_ranks_data, lost_chunk, lost_contribution, stale_result };

/// Makes one mistake at the third call of its rank.
class Saboteur final : public Tap {
 public:
  Saboteur(Fault fault, const ExactPattern& other) : fault_(fault), other_(other) {}

  const std::byte* contribution(const Call& call) override {
    ++calls_;
    before_.assign(call.out, call.out + call.bytes());
    if (calls_ != 3) return call.in;
    input_.assign(call.in, call.in + call.bytes());
    if (fault_ == Fault::other_ranks_data) other_.fill(std::span(input_), static_cast<std::uint64_t>(calls_));
    if (fault_ == Fault::lost_contribution) {
      // As if a piece had been taken from a buffer that nobody has filled.
      std::fill_n(input_.begin(), kChunk * size_of(call.type), std::byte{0});
    }
    return input_.data();
  }

  void result(const Call& call) override {
    if (calls_ == 3) {
      const std::size_t element = size_of(call.type);
      std::byte* const middle = call.out + kCount / 2 * element;
      if (fault_ == Fault::bit_flip) *middle ^= std::byte{1};
      if (fault_ == Fault::lost_chunk) std::copy_n(before_.data(), kChunk * element, call.out);
      if (fault_ == Fault::stale_result) std::copy(last_.begin(), last_.end(), call.out);
    }
    last_.assign(call.out, call.out + call.bytes());
  }

 private:
  Fault fault_;
  const ExactPattern& other_;
  int calls_ = 0;
  std::vector<std::byte> input_;
  std::vector<std::byte> before_;
  std::vector<std::byte> last_;
};

/// Wrong elements that each rank sees in the third of three iterations; before it there must be none.
std::vector<std::size_t> wrong_with(Fault fault, Backend backend, DataType type, ReduceOp op, bool in_place) {
  std::vector<std::size_t> wrong(kRanks);
  const auto problems = run_ranks(kRanks, [&](const Group& group) -> std::string {
    const ExactPattern pattern(group.rank, group.size, type, op);
    const ExactPattern other((group.rank + 1) % group.size, group.size, type, op);
    Saboteur saboteur(group.rank == kFaulty ? fault : Fault::none, other);
    auto connected = connect(group, {backend, kCount * size_of(type), "", &saboteur}, in_time());
    if (!connected) return connected.error().message;
    Communicator& all = *connected->communicator;
    for (std::uint64_t iteration = 1; iteration <= 3; ++iteration) {
      const auto out = all.recv_buffer();
      const auto in = in_place ? out : all.send_buffer();
      pattern.fill(in, iteration);
      if (auto done = all.all_reduce(in, out, type, op, in_time()); !done) return done.error().message;
      const std::size_t here = pattern.count_wrong(out, iteration);
      if (iteration < 3 && here != 0) return concat(here, " are wrong in iteration ", iteration);
      wrong[static_cast<std::size_t>(group.rank)] = here;
      // Nobody starts again while another still looks.
      if (auto met = all.barrier(in_time()); !met) return met.error().message;
    }
    return {};
  });
  CHECK(problems == std::vector<std::string>(kRanks));
  return wrong;
}

/// Calls `body` for everything that a mistake could hide in.
template <class Body>
void for_everything(Body body) {
  for (const DataType type : kDataTypes) {
    for (const ReduceOp op : kReduceOps) {
      for (const Backend backend : {Backend::shm, Backend::tcp}) {
        CAPTURE(name_of(type), name_of(op), backend == Backend::shm);
        body(backend, type, op);
      }
    }
  }
}

using Wrong = std::vector<std::size_t>;

}  // namespace

TEST_CASE("a flipped bit in a result is one wrong element") {
  for_everything([](Backend backend, DataType type, ReduceOp op) {
    CHECK(wrong_with(Fault::bit_flip, backend, type, op, false) == Wrong{0, 1, 0});
  });
}

TEST_CASE("another rank's data is found by all ranks") {
  for_everything([](Backend backend, DataType type, ReduceOp op) {
    const Wrong wrong = wrong_with(Fault::other_ranks_data, backend, type, op, true);
    CHECK(wrong[0] > kCount / 5);  // of max and min, where one of two ranks has the extreme value
    CHECK(wrong == Wrong(kRanks, wrong[0]));
  });
}

TEST_CASE("a piece of the result that never arrived is found by its rank") {
  for_everything([](Backend backend, DataType type, ReduceOp op) {
    for (const bool in_place : {false, true}) {
      const Wrong wrong = wrong_with(Fault::lost_chunk, backend, type, op, in_place);
      CHECK(wrong[kFaulty] > kChunk / 2);
      CHECK(wrong[kFaulty] <= kChunk);
      CHECK(wrong[0] + wrong[2] == 0);
    }
  });
}

TEST_CASE("a piece of a contribution that is missing is found by all ranks") {
  for_everything([](Backend backend, DataType type, ReduceOp op) {
    const Wrong wrong = wrong_with(Fault::lost_contribution, backend, type, op, false);
    CHECK(wrong[0] > kChunk / 5);
    CHECK(wrong[0] <= kChunk);
    CHECK(wrong == Wrong(kRanks, wrong[0]));
  });
}

TEST_CASE("the result of the iteration before is wrong at every element") {
  for_everything([](Backend backend, DataType type, ReduceOp op) {
    CHECK(wrong_with(Fault::stale_result, backend, type, op, false) == Wrong{0, kCount, 0});
  });
}
