#include <unistd.h>

#include <array>
#include <thread>
#include <vector>

#include "ddrun/base/event_thread.hpp"
#include "ddrun/test/catch.hpp"

using namespace ddrun;

namespace {

/// Sums what is asked of it, and what comes through a pipe.
class Summing {
 public:
  Summing() {
    auto pipe = make_pipe();
    REQUIRE(pipe);
    pipe_ = std::move(*pipe);
    REQUIRE(thread_.open("cannot start"));
    REQUIRE(thread_.watch(EPOLL_CTL_ADD, pipe_.read.get(), EPOLLIN, 1));
    REQUIRE(thread_.start("summing", [this] { run(); }));
  }
  ~Summing() {
    thread_.ask([this] { stopping_ = true; });
    thread_.join();
  }

  void add(int number) {
    thread_.ask([this, number] { sum_ += number; });
  }
  void write(char byte) const { REQUIRE(::write(pipe_.write.get(), &byte, 1) == 1); }
  int sum() {
    int sum = 0;
    thread_.ask([&] { sum = sum_; });
    return sum;
  }

 private:
  void run() {
    std::array<epoll_event, 4> events{};
    while (!stopping_) {
      const int count = thread_.wait(events, -1);
      for (int i = 0; i < count; ++i) {
        if (events[static_cast<std::size_t>(i)].data.u64 == EventThread::token) {
          thread_.answer();
          continue;
        }
        char byte = 0;
        if (::read(pipe_.read.get(), &byte, 1) == 1) sum_ += byte;
      }
    }
  }

  Pipe pipe_;
  int sum_ = 0;
  bool stopping_ = false;
  EventThread thread_;
};

}  // namespace

TEST_CASE("an event thread does what many threads ask, each once and before they go on") {
  Summing summing;
  std::vector<std::thread> callers;
  for (int i = 0; i < 8; ++i) {
    callers.emplace_back([&] {
      for (int times = 0; times < 100; ++times) summing.add(1);
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(summing.sum() == 800);
}

TEST_CASE("an event thread hears its descriptors besides what is asked") {
  Summing summing;
  summing.write(5);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (summing.sum() != 5 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  CHECK(summing.sum() == 5);
}

TEST_CASE("an event thread forgets a descriptor") {
  EventThread thread;
  auto pipe = make_pipe();
  REQUIRE(pipe);
  REQUIRE(thread.open("cannot start"));
  REQUIRE(thread.watch(EPOLL_CTL_ADD, pipe->read.get(), EPOLLIN, 1));
  REQUIRE(::write(pipe->write.get(), "x", 1) == 1);
  std::array<epoll_event, 4> events{};
  CHECK(thread.wait(events, 0) == 1);
  const std::uint64_t token = events[0].data.u64;  // which is not aligned there
  CHECK(token == 1);
  thread.forget(pipe->read.get());
  CHECK(thread.wait(events, 0) == 0);
  CHECK_FALSE(thread.watch(EPOLL_CTL_ADD, -1, EPOLLIN, 2));
}
