#include "tcp/algorithms.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>

#include "ddrun/collectives/checker.hpp"
#include "ddrun/collectives/pattern.hpp"
#include "ddrun/test/catch.hpp"
#include "ranks.hpp"
#include "simulated_peers.hpp"

using namespace ddrun;
using namespace ddrun::collectives;
using ddrun::test::Mailboxes;
using ddrun::test::run_simulated;

namespace {

constexpr std::byte kPoison{0xa5};
constexpr std::size_t kChainPiece = 40;  // bytes: whole elements of every type

struct Algorithm {
  const char* name;
  Collective collective;
  std::function<Result<void>(Peers&, Workspace&, const Call&)> run;
};

const std::vector<Algorithm>& algorithms() {
  using P = Peers;
  using W = Workspace;
  static const std::vector<Algorithm> all{
      {"all_reduce by doubling", Collective::all_reduce, all_reduce_by_doubling},
      {"all_reduce by halving", Collective::all_reduce, all_reduce_by_halving},
      {"all_reduce by ring", Collective::all_reduce, all_reduce_by_ring},
      {"broadcast by tree", Collective::broadcast, [](P& p, W&, const Call& c) { return broadcast_by_tree(p, c); }},
      {"broadcast by chain", Collective::broadcast,
       [](P& p, W&, const Call& c) { return broadcast_by_chain(p, c, kChainPiece); }},
      {"reduce by tree", Collective::reduce, reduce_by_tree},
      {"reduce by chain", Collective::reduce,
       [](P& p, W& w, const Call& c) { return reduce_by_chain(p, w, c, kChainPiece); }},
      {"gather by tree", Collective::gather, gather_by_tree},
      {"gather directly", Collective::gather, [](P& p, W&, const Call& c) { return gather_directly(p, c); }},
      {"scatter by tree", Collective::scatter, scatter_by_tree},
      {"scatter directly", Collective::scatter, [](P& p, W&, const Call& c) { return scatter_directly(p, c); }},
      {"all_gather by doubling", Collective::all_gather, all_gather_by_doubling},
      {"all_gather by ring", Collective::all_gather, [](P& p, W&, const Call& c) { return all_gather_by_ring(p, c); }},
      {"reduce_scatter by doubling", Collective::reduce_scatter, reduce_scatter_by_doubling},
      {"reduce_scatter by ring", Collective::reduce_scatter, reduce_scatter_by_ring},
      {"all_to_all by pairs", Collective::all_to_all, all_to_all_by_pairs},
      {"send_recv", Collective::send_recv, send_and_receive},
  };
  return all;
}

struct Numbers {
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
};

/// One rank's part of a call: fills, calls, and says what is wrong.
std::string check(Peers& peers, const Algorithm& algorithm, Numbers numbers, std::size_t count, int root, int shift,
                  bool in_place) {
  const int n = peers.size();
  const ExactPattern pattern(peers.rank(), n, numbers.type, numbers.op);
  const Blocks blocks = blocks_of(algorithm.collective, n);
  Call call{algorithm.collective, numbers.type, numbers.op, count};
  call.root = root;
  call.to = peers.at(shift);
  call.from = peers.at(-shift);
  std::vector<std::byte> input(blocks.in * call.bytes());
  std::vector<std::byte> output(blocks.out * call.bytes(), kPoison);
  const std::uint64_t first = 17;
  const std::size_t own = static_cast<std::size_t>(peers.rank()) * call.bytes();
  pattern.fill(input, first);
  call.in = input.data();
  call.out = output.data();
  if (in_place) {
    if (blocks.in < blocks.out) {
      call.in = output.data() + own;
      std::copy(input.begin(), input.end(), output.begin() + static_cast<std::ptrdiff_t>(own));
    } else {
      output = input;
      call.in = output.data();
      call.out = blocks.in > blocks.out ? output.data() + own : output.data();
    }
  }
  // What only the root has may be null elsewhere.
  const std::vector<std::byte> before = input;
  if (peers.rank() != root && !in_place) {
    if (call.collective == Collective::reduce || call.collective == Collective::gather) call.out = nullptr;
    if (call.collective == Collective::scatter) call.in = nullptr;
  }
  Workspace ws;
  if (auto done = algorithm.run(peers, ws, call); !done) return done.error().message;
  if (!in_place && input != before) return "the input was changed";
  for (const Expected& expected : expected_of(call, peers.rank(), n, first)) {
    const std::span<const std::byte> part(call.out + expected.begin * size_of(call.type),
                                          expected.count * size_of(call.type));
    const Sequence& right =
        expected.rank == Expected::all_ranks ? pattern.reduction() : pattern.contribution_of(expected.rank);
    if (const auto wrong = right.count_wrong(part, expected.first); wrong > 0) {
      return concat(wrong, " of ", expected.count, " elements are wrong");
    }
  }
  return {};
}

void try_algorithm(const Algorithm& algorithm, int size, Numbers numbers, std::size_t count, int root, int shift,
                   bool in_place) {
  Mailboxes boxes;
  const auto problems = run_simulated(
      size, boxes, [&](Peers& peers) { return check(peers, algorithm, numbers, count, root, shift, in_place); });
  CAPTURE(algorithm.name, size, name_of(numbers.type), name_of(numbers.op), count, root, shift, in_place);
  CHECK(problems == std::vector<std::string>(static_cast<std::size_t>(size)));
  CHECK(boxes.left() == 0);
}

}  // namespace

TEST_CASE("every algorithm is right for 2 to 17 ranks, in place and out of place") {
  for (int size = 2; size <= (ddrun::test::kSanitized ? 6 : 17); ++size) {
    for (const Algorithm& algorithm : algorithms()) {
      try_algorithm(algorithm, size, {}, 61, has_root(algorithm.collective) ? size * 2 / 3 : 0, size / 2,
                    size % 2 == 0);
      try_algorithm(algorithm, size, {}, 3, size - 1, 1, size % 2 != 0);
    }
  }
}

TEST_CASE("every algorithm is right for every type and operation", "[full]") {
  for (const Algorithm& algorithm : algorithms()) {
    for (const DataType type : all_types) {
      for (const ReduceOp op : all_ops) {
        if (op != ReduceOp::sum && !reduces(algorithm.collective)) continue;
        try_algorithm(algorithm, 6, {type, op}, 43, 1, 1, (static_cast<int>(op) + static_cast<int>(type)) % 2 == 0);
      }
    }
  }
}

TEST_CASE("every algorithm does with nothing to do") {
  for (const Algorithm& algorithm : algorithms()) try_algorithm(algorithm, 5, {}, 0, 2, 1, false);
}

TEST_CASE("every way to reduce gives every rank the same bits") {
  for (int size = 2; size <= 9; ++size) {
    for (const Algorithm& algorithm : algorithms()) {
      if (algorithm.collective != Collective::all_reduce) continue;
      std::vector<std::vector<float>> results(static_cast<std::size_t>(size));
      Mailboxes boxes;
      const auto problems = run_simulated(size, boxes, [&](Peers& peers) -> std::string {
        std::vector<float> data(100);
        for (std::size_t i = 0; i < data.size(); ++i) {
          data[i] = 1.0F / static_cast<float>(3 + (i * 7919 + static_cast<std::size_t>(peers.rank()) * 104729) % 10003);
        }
        Call call{Collective::all_reduce, DataType::float32, ReduceOp::sum, data.size()};
        call.out = std::as_writable_bytes(std::span(data)).data();
        call.in = call.out;
        Workspace ws;
        if (auto done = algorithm.run(peers, ws, call); !done) return done.error().message;
        results[static_cast<std::size_t>(peers.rank())] = data;
        return {};
      });
      CAPTURE(algorithm.name, size);
      CHECK(problems == std::vector<std::string>(static_cast<std::size_t>(size)));
      for (const auto& result : results) CHECK(std::memcmp(result.data(), results[0].data(), 400) == 0);
    }
  }
}

TEST_CASE("nobody leaves a meeting before everybody has come") {
  for (int size = 2; size <= 17; ++size) {
    std::atomic<int> there = 0;
    Mailboxes boxes;
    const auto problems = run_simulated(size, boxes, [&](Peers& peers) -> std::string {
      ++there;
      if (auto met = meet(peers); !met) return met.error().message;
      return there == size ? "" : concat("only ", there.load(), " were there");
    });
    CHECK(problems == std::vector<std::string>(static_cast<std::size_t>(size)));
  }
}

TEST_CASE("a rank that sends to itself must receive from itself") {
  Mailboxes boxes;
  const auto problems = run_simulated(2, boxes, [](Peers& peers) -> std::string {
    std::array<std::byte, 4> data{};
    Call call{Collective::send_recv, DataType::float32, ReduceOp::sum, 1, data.data(), data.data()};
    call.to = peers.rank();
    call.from = peers.at(1);
    Workspace ws;
    const auto done = send_and_receive(peers, ws, call);
    return done ? "fine" : done.error().message;
  });
  CHECK(problems[0] == "rank 0 sends to rank 0 and receives from rank 1: who sends to itself receives from itself");
}
