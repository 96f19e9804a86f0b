#include "ready_set.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <map>
#include <memory>
#include <vector>

#include "ddrun/base/unique_fd.hpp"
#include "ddrun/test/catch.hpp"

using namespace ddrun;
using ddrun::logs::ReadySet;

namespace {

struct Pipes {
  explicit Pipes(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) ends.push_back(std::make_unique<Pipe>(make_pipe(O_NONBLOCK).value()));
  }
  void write(std::size_t i) { REQUIRE(::write(ends[i]->write.get(), "x", 1) == 1); }
  void read(std::size_t i) {
    char byte;
    REQUIRE(::read(ends[i]->read.get(), &byte, 1) == 1);
  }
  [[nodiscard]] int fd(std::size_t i) const { return ends[i]->read.get(); }
  /// What a descriptor is added with.
  [[nodiscard]] void* who(std::size_t i) const { return ends[i].get(); }
  [[nodiscard]] std::size_t index(const void* who) const {
    for (std::size_t i = 0; i < ends.size(); ++i) {
      if (ends[i].get() == who) return i;
    }
    return ends.size();
  }

  std::vector<std::unique_ptr<Pipe>> ends;
};

struct Fixture {
  explicit Fixture(std::size_t count) : pipes(count) {
    for (std::size_t i = 0; i < count; ++i) REQUIRE(set.add(pipes.fd(i), pipes.who(i)));
  }
  /// Everything that is ready, as often as it stays so, in `turns` turns of the loop at most.
  void run(int turns) {
    for (int i = 0; i < turns; ++i) context.poll_one();
  }

  boost::asio::io_context context;
  Pipes pipes;
  std::map<std::size_t, int> calls;
  std::function<void(std::size_t)> then = [](std::size_t) {};
  ReadySet set{context.get_executor(), [this](void* who) {
                 const std::size_t i = pipes.index(who);
                 ++calls[i];
                 then(i);
               }};
};

}  // namespace

TEST_CASE("a descriptor is told again until it has been read") {
  Fixture f(2);
  f.run(4);
  CHECK(f.calls.empty());
  f.pipes.write(1);
  f.run(6);
  CHECK(f.calls.count(0) == 0);
  CHECK(f.calls[1] >= 2);
  f.then = [&](std::size_t i) { f.pipes.read(i); };
  f.run(6);
  f.calls.clear();
  f.run(6);
  CHECK(f.calls.empty());
}

TEST_CASE("more descriptors than fit into one turn all have theirs") {
  Fixture f(200);
  for (std::size_t i = 0; i < 200; ++i) f.pipes.write(i);
  f.then = [&](std::size_t i) { f.pipes.read(i); };
  f.run(20);
  CHECK(f.calls.size() == 200);
  for (const auto& [index, count] : f.calls) CHECK(count == 1);
}

TEST_CASE("one that is removed in a turn is not told in it any more") {
  Fixture f(2);
  f.pipes.write(0);
  f.pipes.write(1);
  f.then = [&](std::size_t i) {
    f.set.remove(f.pipes.fd(1 - i), f.pipes.who(1 - i));
    f.pipes.read(i);
  };
  f.run(6);
  CHECK(f.calls.size() == 1);
}

TEST_CASE("one that pauses is not told, and its end at most once, until it goes on") {
  Fixture f(1);
  f.pipes.write(0);
  f.set.pause(f.pipes.fd(0), f.pipes.who(0));
  f.run(6);
  CHECK(f.calls.empty());
  f.pipes.ends[0]->write.reset();
  f.run(20);
  CHECK(f.calls[0] <= 1);
  f.calls.clear();
  f.set.resume(f.pipes.fd(0), f.pipes.who(0));
  f.run(6);
  CHECK(f.calls[0] >= 1);
}

TEST_CASE("a set that is closed in a turn tells nothing more") {
  Fixture f(3);
  for (std::size_t i = 0; i < 3; ++i) f.pipes.write(i);
  f.then = [&](std::size_t) { f.set.close(); };
  f.run(6);
  CHECK(f.calls.size() == 1);
  CHECK(f.calls.begin()->second == 1);
}
