#include "ddrun/collectives/all_reduce.hpp"

#include <algorithm>
#include <limits>
#include <optional>

#include "ddrun/collectives/pattern.hpp"
#include "ddrun/test/catch.hpp"
#include "ranks.hpp"

using namespace ddrun;
using namespace ddrun::collectives;
using ddrun::test::in_time;
using ddrun::test::run_ranks;

namespace {

constexpr float kPoison = -std::numeric_limits<float>::infinity();

/// What a test does with one count; the problem in words, or nothing.
std::string check_sum(AllReduce& all_reduce, const ExactPattern& pattern, std::span<const float> in,
                      std::span<float> out) {
  if (auto summed = all_reduce.sum(in, out, in_time()); !summed) return summed.error().message;
  const std::size_t wrong = pattern.count_wrong(out);
  return wrong == 0 ? std::string() : concat(wrong, " of ", out.size(), " elements are wrong");
}

std::string sum_in_own_buffers(AllReduce& all_reduce, const ExactPattern& pattern, std::size_t count) {
  const auto send = all_reduce.send_buffer().first(count);
  const auto recv = all_reduce.recv_buffer().first(count);
  pattern.fill(send);
  std::fill(recv.begin(), recv.end(), kPoison);
  if (auto problem = check_sum(all_reduce, pattern, send, recv); !problem.empty()) return "out of place: " + problem;
  pattern.fill(recv);
  if (auto problem = check_sum(all_reduce, pattern, recv, recv); !problem.empty()) return "in place: " + problem;
  return {};
}

std::string sum_in_private_memory(AllReduce& all_reduce, const ExactPattern& pattern, std::size_t count) {
  std::vector<float> in(count);
  std::vector<float> out(count, kPoison);
  pattern.fill(in);
  if (auto problem = check_sum(all_reduce, pattern, in, out); !problem.empty()) return "private: " + problem;
  return check_sum(all_reduce, pattern, in, in);
}

void try_sizes(Backend backend, int size, const std::vector<std::size_t>& counts) {
  const auto problems = run_ranks(size, [&](const Group& group) -> std::string {
    AllReduceOptions options;
    options.backend = backend;
    options.buffer_count = *std::max_element(counts.begin(), counts.end());
    auto connected = connect(group, options, in_time());
    if (!connected) return connected.error().message;
    AllReduce& all_reduce = *connected->all_reduce;
    const ExactPattern pattern(group.rank, group.size);
    for (const std::size_t count : counts) {
      // Twice: the second time finds what the first has left behind.
      for (int time = 0; time < 2; ++time) {
        auto problem = sum_in_own_buffers(all_reduce, pattern, count);
        if (problem.empty()) problem = sum_in_private_memory(all_reduce, pattern, count);
        if (!problem.empty()) return concat(count, " elements, ", problem);
      }
    }
    auto met = all_reduce.barrier(in_time());
    return met ? std::string() : met.error().message;
  });
  CAPTURE(size);
  CHECK(problems == std::vector<std::string>(static_cast<std::size_t>(size)));
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

TEST_CASE("a million and three elements are summed by both back ends") {
  for (const int size : {2, 3, 5}) {
    try_sizes(Backend::shm, size, {1000003});
    try_sizes(Backend::tcp, size, {1000003});
  }
}

TEST_CASE("more ranks than elements and than processors work") {
  try_sizes(Backend::shm, 24, {1, 5, 23, 25, 3000});
  try_sizes(Backend::tcp, 24, {1, 5, 23, 25, 3000});
}

TEST_CASE("large sums with separate output go past the cache and are right") {
  try_sizes(Backend::shm, 2, {(20U << 20) / sizeof(float) + 5});
}

TEST_CASE("many small sums in a row never meet old data") {
  for (const Backend backend : {Backend::shm, Backend::tcp}) {
    const int rounds = backend == Backend::shm ? 3000 : 200;
    const auto problems = run_ranks(3, [&](const Group& group) -> std::string {
      auto connected = connect(group, {backend, 16}, in_time());
      if (!connected) return connected.error().message;
      for (int round = 1; round <= rounds; ++round) {
        // Lines and slots in turn.
        std::vector<float> data(round % 3 == 0 ? 100 : 2, static_cast<float>(round * (group.rank + 1)));
        if (auto summed = connected->all_reduce->sum_in_place(data, in_time()); !summed) return summed.error().message;
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
    auto connected = connect(group, {Backend::automatic, 4}, in_time());
    if (!connected) return connected.error().message;
    if (connected->members.size() != 2 || connected->members[1].pid <= 0) return "members are wrong";
    return std::string(connected->all_reduce->name()) + connected->why_not_shm;
  });
  CHECK(problems == std::vector<std::string>{"shm", "shm"});
}

TEST_CASE("a group of one needs no store") {
  for (const Backend backend : {Backend::automatic, Backend::shm, Backend::tcp}) {
    auto connected = connect(Group{}, {backend, 4}, in_time());
    REQUIRE(connected);
    const auto send = connected->all_reduce->send_buffer();
    const auto recv = connected->all_reduce->recv_buffer();
    std::fill(send.begin(), send.end(), 2.5F);
    std::fill(recv.begin(), recv.end(), 0.0F);
    REQUIRE(connected->all_reduce->sum(send, recv, in_time()));
    CHECK(std::count(recv.begin(), recv.end(), 2.5F) == 4);
  }
}
