// A lease on a thread of its own.

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <optional>

#include "ddrun/lease/lease.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/processes.hpp"

using namespace ddrun;
using namespace ddrun::test;
using namespace std::chrono_literals;

namespace {

constexpr Milliseconds ttl = lease::min_ttl;
constexpr const char* program = R"(while read -r what a _; do case $what in
  tick) [ -z "$address" ] || echo mine $term $a; echo done $a;;
  campaign) address=$a; term=$((${term:-6} + 1));;
  resign) address=; echo resigned;;
  verdict) echo recorded;;
esac; done)";

}  // namespace

TEST_CASE("a lease with a thread is kept while its owner does not run, and tells nothing after its destruction") {
  boost::asio::io_context io;
  const auto work = boost::asio::make_work_guard(io);
  std::optional<lease::Leader> leader;
  int calls = 0;
  auto made =
      lease::Lease::make(io.get_executor(), {"job", ttl}, {{"sh", "-c", program}}, [&](const lease::Tell& what) {
        ++calls;
        if (const auto* to = std::get_if<lease::Leader>(&what)) leader = *to;
      });
  REQUIRE(made);
  auto lease = std::move(*made);
  REQUIRE(lease->start());
  lease->campaign("one:1");
  REQUIRE(wait_until([&] { return lease->is_leader(); }));
  CHECK(calls == 0);
  // The owner stands still for longer than the time to live.
  const auto end = Clock::now() + ttl + 500ms;
  REQUIRE(wait_until([&] { return !lease->is_leader() || Clock::now() >= end; }));
  CHECK(lease->is_leader());
  REQUIRE(wait_until([&] { return io.poll() > 0; }));
  CHECK(leader == lease::Leader{7, "one:1", true});
  CHECK(calls == 1);

  bool recorded = false, resigned = false;
  lease->record_verdict("exit 0", [&](const Result<void>& result) { recorded = result.has_value(); });
  REQUIRE(wait_until([&] { return lease->has_recorded(); }));
  CHECK_FALSE(recorded);
  REQUIRE(wait_until([&] { return io.poll(), recorded; }));
  lease->resign([&](const Result<void>& result) { resigned = result.has_value(); });
  REQUIRE(wait_until([&] { return io.poll(), resigned; }));
  CHECK_FALSE(lease->is_leader());

  // Told, and not called yet.
  const int before = calls;
  lease->campaign("one:2");
  REQUIRE(wait_until([&] { return lease->is_leader(); }));
  lease.reset();
  io.poll();
  CHECK(calls == before);
}
