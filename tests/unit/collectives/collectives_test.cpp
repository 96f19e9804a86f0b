// Every back end's collectives, compared with what their definition says about random data.

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
  PrivateWay private_way = PrivateWay::automatic;
};

/// What is tested of shared memory.
const std::vector<Tested> kShm = [] {
  std::vector<Tested> tested{{"shm, staged", Backend::shm, PrivateWay::staged}};
  if (ddrun::test::reaches_across()) tested.push_back({"shm, across", Backend::shm, PrivateWay::across});
  return tested;
}();

/// What is tested here: a new back end needs one line more.
const std::vector<Tested> kTested = [] {
  std::vector<Tested> tested = kShm;
  tested.push_back({"tcp", Backend::tcp});
  // It is slow enough, and not our code, to be left out under a sanitizer.
  if (!ddrun::test::kSanitized && probe(Backend::gloo)) tested.push_back({"gloo", Backend::gloo});
  return tested;
}();

constexpr std::byte kPoison{0xa5};
constexpr std::size_t kBeyond = 64;

enum class Where { communicators, own, unequal };
constexpr std::array kPlaces{Where::communicators, Where::own, Where::unequal};

/// One call of all ranks.
struct Trial {
  Call call;  ///< without memory, and without peers
  Where where = Where::communicators;
  bool in_place = false;
  int peers = 0;  ///< which of the patterns below
};

constexpr int kPeerPatterns = 5;

/// Who sends to whom.
int send_to(int pattern, int rank, int size) {
  switch (pattern) {
    case 0: return (rank + 1) % size;                                       // a ring
    case 1: return (rank + size - 1) % size;                                // the other way round
    case 2: return (rank ^ 1) < size ? rank ^ 1 : rank;                     // pairs, and perhaps one that is alone
    case 3: return rank == 0 || rank == size - 1 ? size - 1 - rank : rank;  // one pair, the others idle
    default: return rank;                                                   // everybody alone
  }
}

int receive_from(int pattern, int rank, int size) {
  for (int other = 0; other < size; ++other) {
    if (send_to(pattern, other, size) == rank) return other;
  }
  return -1;
}

std::string words(const Trial& trial) {
  constexpr std::array kWhere{"the communicator's memory", "own memory", "unequal memory"};
  const Call& call = trial.call;
  return concat(name_of(call.collective), " of ", call.count, ' ', name_of(call.type), ", ", name_of(call.op),
                ", root ", call.root, ", peers ", trial.peers, trial.in_place ? ", in place in " : ", out of place in ",
                kWhere[static_cast<std::size_t>(trial.where)]);
}

/// The memory of one rank for one call.
class Arrays {
 public:
  Arrays(Communicator& all, const Trial& trial, const Bytes& input) : in_bytes_(input.size()) {
    call_ = trial.call;
    const int rank = all.rank();
    const Blocks blocks = blocks_of(call_.collective, all.size());
    const std::size_t bytes = call_.bytes();
    out_bytes_ = bytes * blocks.out;
    const bool theirs =
        trial.where == Where::communicators || (trial.where == Where::unequal && (rank + call_.root) % 2 == 0);
    const std::size_t room = std::max(in_bytes_, out_bytes_) + kBeyond;
    if (!theirs) {
      first_.resize(room);
      second_.resize(room);
    }
    const std::span<std::byte> send = theirs ? all.send_buffer().first(room) : std::span(first_);
    const std::span<std::byte> recv = theirs ? all.recv_buffer().first(room) : std::span(second_);
    std::fill(send.begin(), send.end(), kPoison);
    std::fill(recv.begin(), recv.end(), kPoison);
    memory_ = recv;

    const bool root = rank == call_.root;
    const bool has_in = call_.collective != Collective::scatter || root;
    const bool has_out = (call_.collective != Collective::gather && call_.collective != Collective::reduce) || root;
    const std::size_t mine = bytes * static_cast<std::size_t>(rank);
    std::byte* in = send.data();
    std::byte* out = recv.data();
    if (trial.in_place && has_in && has_out) {
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

std::string try_one(Communicator& all, Trial trial, std::uint64_t seed) {
  Call& call = trial.call;
  call.to = send_to(trial.peers, all.rank(), all.size());
  call.from = receive_from(trial.peers, all.rank(), all.size());
  std::vector<Bytes> inputs;
  const std::size_t elements = call.count * blocks_of(call.collective, all.size()).in;
  for (int rank = 0; rank < all.size(); ++rank) inputs.push_back(random_input(call.type, elements, seed, rank));
  const Bytes& mine = inputs[static_cast<std::size_t>(all.rank())];
  const Arrays arrays(all, trial, mine);
  if (auto done = all.perform(arrays.call(), in_time()); !done) return done.error().message;
  return arrays.compare(mine, naive_output(arrays.call(), all.rank(), inputs));
}

/// Whether a trial differs from that with the next less of root, op and peers.
bool worth_it(const Trial& trial) {
  const Collective what = trial.call.collective;
  return (has_root(what) || trial.call.root == 0) && (reduces(what) || trial.call.op == ReduceOp::sum) &&
         (what == Collective::send_recv || trial.peers == 0);
}

void try_all(const Tested& tested, int size, const std::vector<Trial>& trials) {
  std::size_t most = 0;
  for (const Trial& trial : trials) most = std::max(most, trial.call.bytes() * static_cast<std::size_t>(size));
  const auto problems = run_ranks(size, [&](const Group& group) -> std::string {
    CommunicatorOptions options{tested.backend, most + kBeyond};
    options.private_way = tested.private_way;
    auto connected = connect(group, options, in_time());
    if (!connected) return connected.error().message;
    Communicator& all = *connected->communicator;
    std::uint64_t seed = 0;
    for (const Trial& trial : trials) {
      const Call& call = trial.call;
      const auto lacking = all.lacks(call.collective, call.type, call.op, trial.in_place);
      if (!lacking.empty() && tested.backend == Backend::gloo) continue;
      if (!lacking.empty()) return lacking;
      auto problem = try_one(all, trial, ++seed);
      if (!problem.empty()) return concat(words(trial), ": ", problem);
    }
    return {};
  });
  CAPTURE(tested.name, size, trials.size());
  CHECK(problems == std::vector<std::string>(static_cast<std::size_t>(size)));
}

/// Each collective with each of these, wherever the memory is; of all those every `step`-th, which has to be a prime
/// above 5, so that each value still meets each other one.
std::vector<Trial> trials_of(const std::vector<std::size_t>& counts, const std::vector<DataType>& types,
                             const std::vector<ReduceOp>& ops, const std::vector<int>& roots, int step = 1) {
  std::vector<Trial> trials;
  int next = 0;
  for (const Collective what : all_collectives) {
    for (const std::size_t count : counts) {
      for (const DataType type : types) {
        for (const ReduceOp op : ops) {
          for (const int root : roots) {
            for (int peers = 0; peers < kPeerPatterns; ++peers) {
              for (const Where where : kPlaces) {
                for (const bool in_place : {false, true}) {
                  const Trial trial{{what, type, op, count, nullptr, nullptr, root}, where, in_place, peers};
                  if (worth_it(trial) && next++ % step == 0) trials.push_back(trial);
                }
              }
            }
          }
        }
      }
    }
  }
  return trials;
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
      try_all(tested, size, trials_of({0, 1, 3, 8, 67, 1023}, {DataType::float32}, {ReduceOp::sum}, roots, step));
    }
  }
}

TEST_CASE("every collective is right for large counts") {
  for (const Tested& tested : kTested) {
    // More than one round of whatever the back ends move at a time.
    const std::size_t most = ddrun::test::kSanitized ? 70001 : 200003;
    try_all(tested, 2, trials_of({4099, most}, {DataType::float32}, {ReduceOp::sum}, {1}));
    for (const int size : ddrun::test::few_if_sanitized<int>({3, 5, 8}, 1)) {
      try_all(tested, size, trials_of({20011}, {DataType::float32}, {ReduceOp::sum}, {size / 2}));
    }
  }
}

TEST_CASE("every collective is right for every type and operation") {
  for (const Tested& tested : kTested) {
    const auto counts = ddrun::test::few_if_sanitized<std::size_t>({5, 3001}, 1);
    for (const int size : ddrun::test::few_if_sanitized<int>({2, 3}, 1)) {
      try_all(tested, size, trials_of(counts, kAllTypes, kAllOps, {0, size - 1}, 7));
    }
    if (!ddrun::test::kSanitized) try_all(tested, 5, trials_of({1501}, kAllTypes, {ReduceOp::sum}, {0, 4}, 7));
  }
}

TEST_CASE("every collective over shared memory is right for more ranks than processors and elements") {
  const int size = ddrun::test::kSanitized ? 7 : 21;
  for (const Tested& tested : kShm) {
    try_all(tested, size, trials_of({3, 301}, {DataType::bfloat16}, {ReduceOp::sum}, {0, size - 1}));
  }
}

TEST_CASE("a sum of more than caches hold is right", "[full]") {
  for (const Tested& tested : kShm) {
    Trial trial{{Collective::all_reduce, DataType::float32, ReduceOp::sum, (20U << 20) / sizeof(float) + 5}};
    try_all(tested, 2, {trial, {trial.call, Where::own}});
  }
}
