#include "ddrun/collectives/communicator.hpp"

#include <algorithm>
#include <optional>

#include "ddrun/collectives/pattern.hpp"
#include "ddrun/test/catch.hpp"
#include "ranks.hpp"

using namespace ddrun;
using namespace ddrun::collectives;
using ddrun::test::in_time;
using ddrun::test::run_ranks;

namespace {

constexpr std::byte kPoison{0xa5};

/// What a group reduces, and the data for it.
struct Work {
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
};

/// What a test does with one count; the problem in words, or nothing.
std::string check_one(Communicator& all, const ExactPattern& pattern, Work work, std::span<const std::byte> in,
                      std::span<std::byte> out) {
  if (auto done = all.all_reduce(in, out, work.type, work.op, in_time()); !done) return done.error().message;
  const std::size_t wrong = pattern.count_wrong(out);
  return wrong == 0 ? std::string() : concat(wrong, " of ", out.size() / size_of(work.type), " elements are wrong");
}

std::string reduce_in_own_buffers(Communicator& all, const ExactPattern& pattern, Work work, std::size_t count) {
  const auto send = all.send_buffer().first(count * size_of(work.type));
  const auto recv = all.recv_buffer().first(count * size_of(work.type));
  pattern.fill(send);
  std::fill(recv.begin(), recv.end(), kPoison);
  if (auto problem = check_one(all, pattern, work, send, recv); !problem.empty()) return "out of place: " + problem;
  pattern.fill(recv);
  if (auto problem = check_one(all, pattern, work, recv, recv); !problem.empty()) return "in place: " + problem;
  return {};
}

std::string reduce_in_private_memory(Communicator& all, const ExactPattern& pattern, Work work, std::size_t count) {
  std::vector<std::byte> in(count * size_of(work.type));
  std::vector<std::byte> out(in.size(), kPoison);
  pattern.fill(in);
  if (auto problem = check_one(all, pattern, work, in, out); !problem.empty()) return "private: " + problem;
  return check_one(all, pattern, work, in, in);
}

void try_sizes(Backend backend, int size, const std::vector<std::size_t>& counts,
               const std::vector<Work>& works = {{}}) {
  const auto problems = run_ranks(size, [&](const Group& group) -> std::string {
    CommunicatorOptions options;
    options.backend = backend;
    options.buffer_bytes = *std::max_element(counts.begin(), counts.end()) * sizeof(double);
    auto connected = connect(group, options, in_time());
    if (!connected) return connected.error().message;
    Communicator& all = *connected->communicator;
    for (const Work work : works) {
      const ExactPattern pattern(group.rank, group.size, work.type, work.op);
      for (const std::size_t count : counts) {
        // Twice: the second time finds what the first has left behind.
        for (int time = 0; time < 2; ++time) {
          auto problem = reduce_in_own_buffers(all, pattern, work, count);
          if (problem.empty()) problem = reduce_in_private_memory(all, pattern, work, count);
          if (!problem.empty()) {
            return concat(count, ' ', name_of(work.type), ", ", name_of(work.op), ", ", problem);
          }
        }
      }
    }
    auto met = all.barrier(in_time());
    return met ? std::string() : met.error().message;
  });
  CAPTURE(size);
  CHECK(problems == std::vector<std::string>(static_cast<std::size_t>(size)));
}

std::vector<Work> everything() {
  std::vector<Work> works;
  for (const DataType type : all_types) {
    for (const ReduceOp op : all_ops) works.push_back({type, op});
  }
  return works;
}

const std::vector<std::size_t> kCounts{1,    2,    3,    7,    8,    9,     31,    33,    255,
                                       1000, 2047, 2048, 2049, 4097, 10007, 65536, 65537, 100003};

}  // namespace

TEST_CASE("shared memory sums any count for one to nine ranks") {
  for (int size = 1; size <= 9; ++size) try_sizes(Backend::shm, size, kCounts);
}

TEST_CASE("the tcp ring sums any count for one to nine ranks") {
  for (int size = 1; size <= 9; ++size) try_sizes(Backend::tcp, size, kCounts);
}

TEST_CASE("every type and operation works in both back ends") {
  for (const int size : ddrun::test::few_if_sanitized<int>({3, 2, 4, 7}, 1)) {
    for (const Backend backend : {Backend::shm, Backend::tcp}) {
      try_sizes(backend, size, ddrun::test::few_if_sanitized<std::size_t>({5, 5003, 1, 33, 1000, 70001}, 2),
                everything());
    }
  }
}

TEST_CASE("half and bfloat16 are rounded once in both back ends") {
  // 1 + 2^-11 + 2^-11 is 1 + 2^-10 in half, but 1 if each sum is rounded. Likewise with 2^-8 in bfloat16.
  struct Numbers {
    DataType type;
    std::uint16_t one, tiny, right;
  };
  for (const Numbers numbers :
       {Numbers{DataType::float16, 0x3c00, 0x1000, 0x3c01}, Numbers{DataType::bfloat16, 0x3f80, 0x3b80, 0x3f81}}) {
    for (const Backend backend : {Backend::shm, Backend::tcp}) {
      const auto problems = run_ranks(3, [&](const Group& group) -> std::string {
        auto connected = connect(group, {backend, 64}, in_time());
        if (!connected) return connected.error().message;
        for (int large = 0; large < 3; ++large) {
          // More elements than ranks, so that each part of a ring starts elsewhere.
          std::vector<std::uint16_t> data(301, group.rank == large ? numbers.one : numbers.tiny);
          const auto bytes = std::as_writable_bytes(std::span(data));
          auto done = connected->communicator->all_reduce(bytes, bytes, numbers.type, ReduceOp::sum, in_time());
          if (!done) return done.error().message;
          if (std::count(data.begin(), data.end(), numbers.right) != 301) return concat(data[0], " with ", large);
        }
        return {};
      });
      CAPTURE(name_of(numbers.type), backend == Backend::shm);
      CHECK(problems == std::vector<std::string>(3));
    }
  }
}

TEST_CASE("every rank has the same bits where rounding depends on the order") {
  for (const Backend backend : {Backend::shm, Backend::tcp}) {
    for (const std::size_t count : {std::size_t{5}, std::size_t{500}, std::size_t{50000}}) {
      std::vector<std::vector<float>> results(5);
      const auto problems = run_ranks(5, [&](const Group& group) -> std::string {
        auto connected = connect(group, {backend, 64}, in_time());
        if (!connected) return connected.error().message;
        std::vector<float> data(count);
        for (std::size_t i = 0; i < count; ++i) {
          data[i] = 1.0F / static_cast<float>(3 + (i * 7919 + static_cast<std::size_t>(group.rank) * 104729) % 100003);
        }
        if (auto done = connected->communicator->sum_in_place(data, in_time()); !done) return done.error().message;
        results[static_cast<std::size_t>(group.rank)] = data;
        return {};
      });
      CHECK(problems == std::vector<std::string>(5));
      for (const auto& result : results) CHECK(result == results[0]);
    }
  }
}

TEST_CASE("a million and three elements are summed by both back ends", "[full]") {
  for (const int size : {2, 3, 5}) {
    try_sizes(Backend::shm, size, {1000003});
    try_sizes(Backend::tcp, size, {1000003});
  }
}

TEST_CASE("more ranks than elements and than processors work") {
  try_sizes(Backend::shm, 24, {1, 5, 23, 25, 3000});
  try_sizes(Backend::tcp, 24, {1, 5, 23, 25, 3000});
}

TEST_CASE("large sums with separate output go past the cache and are right", "[full]") {
  try_sizes(Backend::shm, 2, {(20U << 20) / sizeof(float) + 5});
}

TEST_CASE("many small sums in a row never meet old data") {
  for (const Backend backend : {Backend::shm, Backend::tcp}) {
    const int rounds = backend == Backend::shm ? 3000 : 200;
    const auto problems = run_ranks(3, [&](const Group& group) -> std::string {
      auto connected = connect(group, {backend, 64}, in_time());
      if (!connected) return connected.error().message;
      for (int round = 1; round <= rounds; ++round) {
        // Lines and slots in turn.
        std::vector<float> data(round % 3 == 0 ? 100 : 2, static_cast<float>(round * (group.rank + 1)));
        if (auto summed = connected->communicator->sum_in_place(data, in_time()); !summed)
          return summed.error().message;
        const auto right = static_cast<float>(round * 6);
        if (std::count(data.begin(), data.end(), right) != static_cast<std::ptrdiff_t>(data.size())) {
          return concat("round ", round, ": ", data[0], " instead of ", right);
        }
      }
      return {};
    });
    CHECK(problems == std::vector<std::string>(3));
  }
}

TEST_CASE("without a wish ranks of one machine share memory") {
  const auto problems = run_ranks(2, [](const Group& group) -> std::string {
    auto connected = connect(group, {Backend::automatic, 16}, in_time());
    if (!connected) return connected.error().message;
    if (connected->members.size() != 2 || connected->members[1].pid <= 0) return "members are wrong";
    return std::string(connected->communicator->name()) + ": " + connected->why;
  });
  CHECK(problems == std::vector<std::string>(2, "shm: all ranks are on one machine"));
}

TEST_CASE("a group of one needs no store") {
  for (const Backend backend : {Backend::automatic, Backend::shm, Backend::tcp}) {
    auto connected = connect(Group{}, {backend, 16}, in_time());
    REQUIRE(connected);
    const auto send = connected->communicator->send_buffer();
    const auto recv = connected->communicator->recv_buffer();
    std::fill(send.begin(), send.end(), std::byte{25});
    std::fill(recv.begin(), recv.end(), std::byte{0});
    REQUIRE(connected->communicator->all_reduce(send, recv, DataType::float32, ReduceOp::sum, in_time()));
    CHECK(std::count(recv.begin(), recv.end(), std::byte{25}) == 16);
  }
}
