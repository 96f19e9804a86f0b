#include "ddrun/collectives/communicator.hpp"

#include <algorithm>

#include "ddrun/test/catch.hpp"
#include "ranks.hpp"

using namespace ddrun;
using namespace ddrun::collectives;
using ddrun::test::in_time;
using ddrun::test::run_ranks;

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
          // More elements than ranks, so that the parts of a ring differ.
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

TEST_CASE("results are bitwise equal on all ranks where rounding depends on the order") {
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
        if (auto done = connected->communicator->sum(data, data, in_time()); !done) return done.error().message;
        results[static_cast<std::size_t>(group.rank)] = data;
        return {};
      });
      CHECK(problems == std::vector<std::string>(5));
      for (const auto& result : results) CHECK(result == results[0]);
    }
  }
}

TEST_CASE("many small sums in a row never use stale data") {
  for (const Backend backend : {Backend::shm, Backend::tcp}) {
    const int rounds = backend == Backend::shm ? 3000 : 200;
    const auto problems = run_ranks(3, [&](const Group& group) -> std::string {
      auto connected = connect(group, {backend, 64}, in_time());
      if (!connected) return connected.error().message;
      for (int round = 1; round <= rounds; ++round) {
        // Alternates lines and slots.
        std::vector<float> data(round % 3 == 0 ? 100 : 2, static_cast<float>(round * (group.rank + 1)));
        if (auto summed = connected->communicator->sum(data, data, in_time()); !summed) return summed.error().message;
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

TEST_CASE("auto chooses shared memory for ranks of one machine") {
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
