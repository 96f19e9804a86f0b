#include "gpu/nccl_session.hpp"

#include <atomic>
#include <future>
#include <string>

#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::collectives;
using std::chrono::seconds;

namespace {

/// A call that returns only once it is aborted, as the watched library's.
struct Blocked {
  std::atomic<bool> has_error = false;
  std::atomic<int> aborts = 0;
  std::promise<void> aborted{};

  [[nodiscard]] std::optional<Error> async_error() const {
    if (!has_error) return std::nullopt;
    return Error{Errc::connection_lost, "rank 1 is gone"};
  }
  void abort() {
    if (++aborts == 1) aborted.set_value();
  }
  [[nodiscard]] bool returns() { return aborted.get_future().wait_for(seconds(20)) == std::future_status::ready; }
};

std::unique_ptr<Watchdog> started(Blocked& call) {
  auto watchdog = Watchdog::start([&] { return call.async_error(); }, [&] { call.abort(); });
  REQUIRE(watchdog);
  return std::move(*watchdog);
}

}  // namespace

TEST_CASE("a call that blocks is aborted at its deadline") {
  Blocked call;
  const auto watchdog = started(call);
  watchdog->arm(Clock::now() + Milliseconds(100));
  REQUIRE(call.returns());
  const auto cause = watchdog->disarm();
  REQUIRE(cause);
  CHECK(cause->code == Errc::timeout);
  CHECK(watchdog->end([&] { ++call.aborts; }, seconds(20)));
  CHECK(call.aborts == 1);
}

TEST_CASE("a call that blocks is aborted on an asynchronous error, before the deadline") {
  Blocked call;
  const auto watchdog = started(call);
  watchdog->arm(Clock::now() + seconds(1000));
  call.has_error = true;
  REQUIRE(call.returns());
  const auto cause = watchdog->disarm();
  REQUIRE(cause);
  CHECK(cause->message == "rank 1 is gone");
}

TEST_CASE("nothing is aborted between calls") {
  Blocked call;
  {
    const auto watchdog = started(call);
    for (int i = 0; i < 1000; ++i) {
      watchdog->arm(Clock::now() + seconds(1000));
      CHECK_FALSE(watchdog->disarm());
    }
    call.has_error = true;
    std::thread::id ended_by;
    CHECK(watchdog->end([&] { ended_by = std::this_thread::get_id(); }, seconds(20)));
    CHECK(ended_by != std::this_thread::get_id());
  }
  CHECK(call.aborts == 0);
}

TEST_CASE("a last action that does not return is left behind") {
  Blocked call;
  std::promise<void> release;
  std::promise<void> returned;
  {
    const auto watchdog = started(call);
    CHECK_FALSE(watchdog->end(
        [&] {
          release.get_future().wait();
          returned.set_value();
        },
        Milliseconds(10)));
  }
  release.set_value();
  CHECK(returned.get_future().wait_for(seconds(20)) == std::future_status::ready);
}
