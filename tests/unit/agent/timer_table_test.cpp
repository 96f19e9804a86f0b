#include "watchdog.hpp"

#include <signal.h>

#include "ddrun/test/catch.hpp"

using namespace ddrun::agent;

namespace {

const std::string good =
    R"({"version": 1, "pid": 4711, "scope_id": "train.py#41", "expiration_time": 17.5, "signal": 9})";

}  // namespace

TEST_CASE("a line as PyTorch writes it") {
  const auto set = parse_timer_request(good);
  REQUIRE(set);
  CHECK(set->pid == 4711);
  CHECK(set->scope == "train.py#41");
  CHECK(set->expires == 17.5);
  CHECK(set->signal == SIGKILL);

  const auto released = parse_timer_request(
      R"({"version": 1, "pid": 4711, "scope_id": "a \"b\" \u00e9", "expiration_time": -1, "signal": 0})");
  REQUIRE(released);
  CHECK(released->scope == "a \"b\" \xc3\xa9");
  CHECK(released->expires < 0);

  // A path that is not UTF-8.
  const auto foreign =
      parse_timer_request(R"({"pid": 4711, "scope_id": "caf\udce9.py#41", "expiration_time": 17.5, "signal": 9})");
  REQUIRE(foreign);
  CHECK(foreign->scope == "caf\xef\xbf\xbd.py#41");
}

TEST_CASE("invalid lines are refused") {
  for (const char* line : {"",
                           "hello",
                           "{}",
                           "[]",
                           "null",
                           "{\"pid\": 4711}",
                           R"({"pid": "4711", "scope_id": "a", "expiration_time": 1, "signal": 9})",
                           R"({"pid": 4711.5, "scope_id": "a", "expiration_time": 1, "signal": 9})",
                           R"({"pid": 1, "scope_id": "a", "expiration_time": 1, "signal": 9})",
                           R"({"pid": 0, "scope_id": "a", "expiration_time": 1, "signal": 9})",
                           R"({"pid": -1, "scope_id": "a", "expiration_time": 1, "signal": 9})",
                           R"({"pid": 99999999999, "scope_id": "a", "expiration_time": 1, "signal": 9})",
                           R"({"pid": 18446744073709551615, "scope_id": "a", "expiration_time": 1, "signal": 9})",
                           R"({"pid": 4711, "scope_id": 5, "expiration_time": 1, "signal": 9})",
                           R"({"pid": 4711, "scope_id": "a", "expiration_time": Infinity, "signal": 9})",
                           R"({"pid": 4711, "scope_id": "a", "expiration_time": 1e999, "signal": 9})",
                           R"({"pid": 4711, "scope_id": "a", "expiration_time": "1", "signal": 9})",
                           R"({"pid": 4711, "scope_id": "a", "expiration_time": 1, "signal": 4000})",
                           R"({"pid": 4711, "scope_id": "a", "expiration_time": 1, "signal": true})",
                           R"({"pid": 4711, "scope_id": "a", "expiration_time": 1})"}) {
    INFO(line);
    CHECK_FALSE(parse_timer_request(line));
  }
  CHECK_FALSE(parse_timer_request(std::string(4096, '{')));
  CHECK_FALSE(parse_timer_request(std::string(4096, '[')));
  CHECK_FALSE(parse_timer_request(std::string(100, '\0')));
}

TEST_CASE("half a line takes nothing from the next one") {
  for (std::size_t size = 0; size < good.size(); ++size) {
    INFO(size);
    const auto request = parse_timer_request(good.substr(0, size) + good);
    REQUIRE(request);
    CHECK(request->pid == 4711);
  }
  for (std::size_t size = 0; size < good.size(); ++size) CHECK_FALSE(parse_timer_request(good.substr(0, size)));
}

TEST_CASE("timers expire in order, one per process, the earliest with a signal first") {
  TimerTable table;
  CHECK_FALSE(table.next());
  REQUIRE(table.set({10, "a", 5, SIGKILL}));
  REQUIRE(table.set({10, "b", 3, SIGTERM}));
  REQUIRE(table.set({10, "c", 1, 0}));
  REQUIRE(table.set({10, "late", 99, SIGKILL}));
  REQUIRE(table.set({20, "a", 2, 0}));
  REQUIRE(table.set({30, "a", 7, SIGKILL}));
  CHECK(table.next() == 1.0);
  CHECK(table.take_expired(0.5).empty());

  const auto expired = table.take_expired(6);
  REQUIRE(expired.size() == 2);
  CHECK(expired[0].pid == 20);
  CHECK(expired[0].signal == 0);
  CHECK(expired[1].pid == 10);
  CHECK(expired[1].scope == "b");
  CHECK(expired[1].signal == SIGTERM);
  CHECK(table.size() == 1);
  CHECK(table.next() == 7.0);
}

TEST_CASE("a timer is released or set anew by process and scope") {
  TimerTable table;
  REQUIRE(table.set({10, "a", 5, SIGKILL}));
  REQUIRE(table.set({10, "a", 8, SIGKILL}));
  CHECK(table.next() == 8.0);
  REQUIRE(table.set({11, "a", -1, 0}));
  REQUIRE(table.set({10, "b", -1, 0}));
  CHECK(table.size() == 1);
  REQUIRE(table.set({10, "a", -1, 0}));
  CHECK(table.size() == 0);
  CHECK(table.take_expired(100).empty());
}

TEST_CASE("the table is bounded, and a full one still releases and renews") {
  TimerTable table;
  for (std::size_t i = 0; i < TimerTable::max_timers; ++i) REQUIRE(table.set({10, std::to_string(i), 5, SIGKILL}));
  CHECK_FALSE(table.set({10, "one more", 5, SIGKILL}));
  CHECK(table.set({10, "7", 6, SIGKILL}));
  CHECK(table.set({10, "8", -1, 0}));
  CHECK(table.set({10, "one more", 5, SIGKILL}));
  CHECK(table.size() == TimerTable::max_timers);
  table.drop([](const TimerRequest& timer) { return timer.pid == 10; });
  CHECK(table.size() == 0);
}
