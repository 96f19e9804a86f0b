// Compares all back ends' collectives on random data with naive implementations.

#include <algorithm>
#include <string>
#include <vector>

#include "ddrun/collectives/communicator.hpp"
#include "ddrun/test/catch.hpp"
#include "naive_collective.hpp"
#include "ranks.hpp"

using namespace ddrun;
using namespace ddrun::collectives;
using ddrun::test::Bytes;
using ddrun::test::in_time;
using ddrun::test::naive_output;
using ddrun::test::random_input;
using ddrun::test::run_ranks;

namespace {

struct Tested {
  std::string name;
  Backend backend;
  PrivateCopy private_copy = PrivateCopy::automatic;
};

/// Variants of shared memory.
const std::vector<Tested> kShm = [] {
  std::vector<Tested> tested{{"shm, staged", Backend::shm, PrivateCopy::staged}};
  if (ddrun::test::can_access_processes()) tested.push_back({"shm, across", Backend::shm, PrivateCopy::cross_process});
  return tested;
}();

/// The tested back ends; add new ones here.
const std::vector<Tested> kTested = [] {
  std::vector<Tested> tested = kShm;
  tested.push_back({"tcp", Backend::tcp});
  // Gloo is slow and third-party code: skip it under a sanitizer.
  if (!ddrun::test::kSanitized && probe(Backend::gloo)) tested.push_back({"gloo", Backend::gloo});
  return tested;
}();

constexpr std::byte kPoison{0xa5};
constexpr std::size_t kBeyond = 64;

enum class MemoryPlace { communicators, own, unequal };
constexpr std::array kPlaces{MemoryPlace::communicators, MemoryPlace::own, MemoryPlace::unequal};

/// One call of all ranks.
struct CallCase {
  Call call;  ///< without memory and peers
  MemoryPlace place = MemoryPlace::communicators;
  bool in_place = false;
  int peers = 0;  ///< index of a pattern of send_to()
};

constexpr int kPeerPatterns = 5;

/// The destination of `rank` in each pattern.
int send_to(int pattern, int rank, int size) {
  switch (pattern) {
    case 0: return (rank + 1) % size;                                       // a ring
    case 1: return (rank + size - 1) % size;                                // the reverse
    case 2: return (rank ^ 1) < size ? rank ^ 1 : rank;                     // pairs; an odd rank sends to itself
    case 3: return rank == 0 || rank == size - 1 ? size - 1 - rank : rank;  // one pair, the others idle
    default: return rank;                                                   // every rank sends to itself
  }
}

int receive_from(int pattern, int rank, int size) {
  for (int other = 0; other < size; ++other) {
    if (send_to(pattern, other, size) == rank) return other;
  }
  return -1;
}

std::string describe(const CallCase& test) {
  constexpr std::array kWhere{"the communicator's memory", "own memory", "unequal memory"};
  const Call& call = test.call;
  return concat(name_of(call.collective), " of ", call.count, ' ', name_of(call.type), ", ", name_of(call.op),
                ", root ", call.root, ", peers ", test.peers, test.in_place ? ", in place in " : ", out of place in ",
                kWhere[static_cast<std::size_t>(test.place)]);
}

/// The memory of one rank for one call.
class Arrays {
 public:
  Arrays(Communicator& all, const CallCase& test, const Bytes& input) : in_bytes_(input.size()) {
    call_ = test.call;
    const int rank = all.rank();
    const Blocks blocks = blocks_of(call_.collective, all.size());
    const std::size_t bytes = call_.bytes();
    out_bytes_ = bytes * blocks.out;
    const bool shared = test.place == MemoryPlace::communicators ||
                        (test.place == MemoryPlace::unequal && (rank + call_.root) % 2 == 0);
    const std::size_t room = std::max(in_bytes_, out_bytes_) + kBeyond;
    if (!shared) {
      first_.resize(room);
      second_.resize(room);
    }
    const std::span<std::byte> send = shared ? all.send_buffer().first(room) : std::span(first_);
    const std::span<std::byte> recv = shared ? all.recv_buffer().first(room) : std::span(second_);
    std::fill(send.begin(), send.end(), kPoison);
    std::fill(recv.begin(), recv.end(), kPoison);
    memory_ = recv;

    const bool root = rank == call_.root;
    const bool has_in = call_.collective != Collective::scatter || root;
    const bool has_out = (call_.collective != Collective::gather && call_.collective != Collective::reduce) || root;
    const std::size_t mine = bytes * static_cast<std::size_t>(rank);
    std::byte* in = send.data();
    std::byte* out = recv.data();
    if (test.in_place && has_in && has_out) {
      in = recv.data() + (blocks.out > blocks.in ? mine : 0);
      out = recv.data() + (blocks.in > blocks.out ? mine : 0);
    } else if (has_in) {
      unchanged_ = send.first(in_bytes_);
    }
    if (has_in) std::copy(input.begin(), input.end(), in);
    call_.in = has_in ? in : nullptr;
    call_.out = has_out ? out : nullptr;
  }

  [[nodiscard]] const Call& call() const { return call_; }

  [[nodiscard]] std::string compare(const Bytes& input, const Bytes& right) const {
    if (!right.empty()) {
      const auto wrong = std::mismatch(right.begin(), right.end(), call_.out).first - right.begin();
      const auto size = static_cast<std::ptrdiff_t>(size_of(call_.type));
      if (wrong < static_cast<std::ptrdiff_t>(right.size())) {
        return concat("wrong from element ", wrong / size, " of ", static_cast<std::ptrdiff_t>(right.size()) / size);
      }
    }
    if (!std::equal(unchanged_.begin(), unchanged_.end(), input.begin())) return "the input was changed";
    const auto beyond = memory_.subspan(std::max(in_bytes_, out_bytes_));
    const bool clean = std::all_of(beyond.begin(), beyond.end(), [](std::byte byte) { return byte == kPoison; });
    return clean ? std::string() : "written beyond the output";
  }

 private:
  Call call_;
  std::size_t in_bytes_;
  std::size_t out_bytes_ = 0;
  Bytes first_, second_;
  std::span<std::byte> memory_;
  std::span<std::byte> unchanged_;
};

std::string try_one(Communicator& all, CallCase test, std::uint64_t seed) {
  Call& call = test.call;
  call.to = send_to(test.peers, all.rank(), all.size());
  call.from = receive_from(test.peers, all.rank(), all.size());
  std::vector<Bytes> inputs;
  const std::size_t elements = call.count * blocks_of(call.collective, all.size()).in;
  for (int rank = 0; rank < all.size(); ++rank) inputs.push_back(random_input(call.type, elements, seed, rank));
  const Bytes& mine = inputs[static_cast<std::size_t>(all.rank())];
  const Arrays arrays(all, test, mine);
  if (auto done = all.perform(arrays.call(), in_time()); !done) return done.error().message;
  return arrays.compare(mine, naive_output(arrays.call(), all.rank(), inputs));
}

/// Whether root, op and peers matter: otherwise the call equals one with a lower value.
bool is_distinct(const CallCase& test) {
  const Collective collective = test.call.collective;
  return (has_root(collective) || test.call.root == 0) && (reduces(collective) || test.call.op == ReduceOp::sum) &&
         (collective == Collective::send_recv || test.peers == 0);
}

void try_all(const Tested& tested, int size, const std::vector<CallCase>& tests) {
  std::size_t most = 0;
  for (const CallCase& test : tests) most = std::max(most, test.call.bytes() * static_cast<std::size_t>(size));
  const auto problems = run_ranks(size, [&](const Group& group) -> std::string {
    CommunicatorOptions options{tested.backend, most + kBeyond};
    options.private_copy = tested.private_copy;
    auto connected = connect(group, options, in_time());
    if (!connected) return connected.error().message;
    Communicator& all = *connected->communicator;
    std::uint64_t seed = 0;
    for (const CallCase& test : tests) {
      const Call& call = test.call;
      const auto reason = all.unsupported_reason(call.collective, call.type, call.op, test.in_place);
      if (!reason.empty() && tested.backend == Backend::gloo) continue;
      if (!reason.empty()) return reason;
      auto problem = try_one(all, test, ++seed);
      if (!problem.empty()) return concat(describe(test), ": ", problem);
    }
    return {};
  });
  CAPTURE(tested.name, size, tests.size());
  CHECK(problems == std::vector<std::string>(static_cast<std::size_t>(size)));
}

/// All combinations, for each placement of memory. Takes every `step`-th, a prime above 5, so that all pairs of values
/// still occur.
std::vector<CallCase> tests_of(const std::vector<std::size_t>& counts, const std::vector<DataType>& types,
                               const std::vector<ReduceOp>& ops, const std::vector<int>& roots, int step = 1) {
  std::vector<CallCase> tests;
  int next = 0;
  for (const Collective collective : all_collectives) {
    for (const std::size_t count : counts) {
      for (const DataType type : types) {
        for (const ReduceOp op : ops) {
          for (const int root : roots) {
            for (int peers = 0; peers < kPeerPatterns; ++peers) {
              for (const MemoryPlace place : kPlaces) {
                for (const bool in_place : {false, true}) {
                  const CallCase test{{collective, type, op, count, nullptr, nullptr, root}, place, in_place, peers};
                  if (is_distinct(test) && next++ % step == 0) tests.push_back(test);
                }
              }
            }
          }
        }
      }
    }
  }
  return tests;
}

const std::vector<DataType> kAllTypes{all_types.begin(), all_types.end()};
const std::vector<ReduceOp> kAllOps{all_ops.begin(), all_ops.end()};

}  // namespace

TEST_CASE("every collective is right for small and odd counts and every root") {
  for (const Tested& tested : kTested) {
    for (const int size : ddrun::test::few_if_sanitized<int>({1, 3, 2, 5, 8}, 2)) {
      std::vector<int> roots;
      for (int root = 0; root < size; ++root) roots.push_back(root);
      const int step = size == 8 ? 7 : 1;
      try_all(tested, size, tests_of({0, 1, 3, 8, 67, 1023}, {DataType::float32}, {ReduceOp::sum}, roots, step));
    }
  }
}

TEST_CASE("every collective is right for large counts") {
  for (const Tested& tested : kTested) {
    // More than one round of the back ends' block sizes.
    const std::size_t most = ddrun::test::kSanitized ? 70001 : 200003;
    try_all(tested, 2, tests_of({4099, most}, {DataType::float32}, {ReduceOp::sum}, {1}));
    for (const int size : ddrun::test::few_if_sanitized<int>({3, 5, 8}, 1)) {
      try_all(tested, size, tests_of({20011}, {DataType::float32}, {ReduceOp::sum}, {size / 2}));
    }
  }
}

TEST_CASE("every collective is right for every type and operation") {
  for (const Tested& tested : kTested) {
    const auto counts = ddrun::test::few_if_sanitized<std::size_t>({5, 3001}, 1);
    for (const int size : ddrun::test::few_if_sanitized<int>({2, 3}, 1)) {
      try_all(tested, size, tests_of(counts, kAllTypes, kAllOps, {0, size - 1}, 7));
    }
    if (!ddrun::test::kSanitized) try_all(tested, 5, tests_of({1501}, kAllTypes, {ReduceOp::sum}, {0, 4}, 7));
  }
}

TEST_CASE("every collective over shared memory is right for more ranks than processors and elements") {
  const int size = ddrun::test::kSanitized ? 7 : 21;
  for (const Tested& tested : kShm) {
    try_all(tested, size, tests_of({3, 301}, {DataType::bfloat16}, {ReduceOp::sum}, {0, size - 1}));
  }
}

TEST_CASE("a sum of more data than fits in the caches is right", "[full]") {
  for (const Tested& tested : kShm) {
    CallCase test{{Collective::all_reduce, DataType::float32, ReduceOp::sum, (20U << 20) / sizeof(float) + 5}};
    try_all(tested, 2, {test, {test.call, MemoryPlace::own}});
  }
}
