#include "ddrun/base/duration.hpp"

#include <climits>

#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace std::chrono_literals;

TEST_CASE("times are read with and without units") {
  CHECK(parse_duration("30").value() == 30s);
  CHECK(parse_duration("1.5").value() == 1500ms);
  CHECK(parse_duration("500ms").value() == 500ms);
  CHECK(parse_duration("2m").value() == 120s);
  CHECK(parse_duration("1h30m").value() == 90min);
  CHECK(parse_duration("0").value() == 0ms);
}

TEST_CASE("an invalid time is rejected with a hint") {
  for (const char* bad : {"", "-1", "x", "5x", "1.2.3", "inf", "nan", "1e3", " 3", "3 ", "5 s", "1h30", "0x10"}) {
    INFO(bad);
    const auto result = parse_duration(bad);
    REQUIRE_FALSE(result);
    CHECK(result.error().code == Errc::invalid_argument);
    CHECK(result.error().message.find("is not a time") != std::string::npos);
  }
}

TEST_CASE("sizes are powers of 1024") {
  CHECK(parse_size("8").value() == 8);
  CHECK(parse_size("64K").value() == 65536);
  CHECK(parse_size("128MiB").value() == 128u << 20);
  CHECK(parse_size("1.5G").value() == 3ull << 29);
  CHECK(parse_size("10MB").value() == 10u << 20);
  for (const char* bad : {"", "K", "-1", "1X", "1KBB", "1Bi", "1iB"}) {
    INFO(bad);
    CHECK_FALSE(parse_size(bad));
  }
}

TEST_CASE("integers are whole, decimal and in range") {
  CHECK(parse_integer("12", 0, 100).value() == 12);
  for (const char* bad : {"", "1x", " 3", "0x10", "101", "-1", "+1", "1.0"}) {
    INFO(bad);
    CHECK_FALSE(parse_integer(bad, 0, 100));
  }
}

TEST_CASE("durations are formatted for messages") {
  CHECK(format_duration(300us) == "0.3 ms");
  CHECK(format_duration(42ms) == "42 ms");
  CHECK(format_duration(350ms) == "0.3 s");
  CHECK(format_duration(12340ms) == "12.3 s");
  CHECK(format_duration(125s) == "2 min 5 s");
  CHECK(format_duration(3h + 2min) == "3 h 2 min");
}

TEST_CASE("the timeout for poll is rounded up to milliseconds") {
  CHECK(poll_timeout(Clock::now() - 1h) == 0);
  const auto before = Clock::now();
  const int left = poll_timeout(before + 10s);
  const auto after = Clock::now();
  CHECK(left <= 10'000);
  CHECK(before + 10s - after <= std::chrono::milliseconds(left));
  CHECK(poll_timeout(Deadline::max()) == INT_MAX);
}
