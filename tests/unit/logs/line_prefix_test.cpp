#include "line_prefix.hpp"

#include <cstdlib>
#include <ctime>

#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::logs;

namespace {

PrefixFacts facts(int workers = 4) {
  return {.role = "trainer", .hostname = "node7", .rank = 13, .local_rank = 3, .workers = workers};
}

}  // namespace

TEST_CASE("the prefix follows template then label then number of workers") {
  LogSpec log;
  CHECK(line_prefix(log, facts()) == "[13] ");
  CHECK(line_prefix(log, facts(1)).empty());
  log.label = Label::rank;
  CHECK(line_prefix(log, facts(1)) == "[13] ");
  log.label = Label::torchrun;
  CHECK(line_prefix(log, facts(1)) == "[trainer3]:");
  log.label = Label::local;
  CHECK(line_prefix(log, facts()) == "[local 3] ");
  log.label = Label::host;
  CHECK(line_prefix(log, facts()) == "[node7:13] ");
  log.label = Label::none;
  CHECK(line_prefix(log, facts()).empty());
  log.line_prefix_template = "${role_name}/${local_rank}/${rank}@${hostname}> ";
  CHECK(line_prefix(log, facts()) == "trainer/3/13@node7> ");
}

TEST_CASE("templates treat dollars as Python does") {
  LogSpec log;
  log.line_prefix_template = "$rank $$x $5 100$";
  CHECK(line_prefix(log, facts()) == "13 $x $5 100$");
}

TEST_CASE("a template with an unknown name is refused with the known names") {
  CHECK(check_template("${rank}:"));
  CHECK(check_template(""));
  for (const char* bad : {"${rnak}", "$locl_rank", "${rank", "${}", "${ra nk}"}) {
    CAPTURE(bad);
    const auto result = check_template(bad);
    REQUIRE_FALSE(result);
    CHECK(result.error().code == Errc::invalid_argument);
    CHECK(result.error().message.find("--log-line-prefix-template") != std::string::npos);
    CHECK(result.error().message.find("${hostname}") != std::string::npos);
  }
  CHECK(check_template("${rnak}").error().message.find("did you mean ${rank}?") != std::string::npos);
}

TEST_CASE("a time stamp is local time with milliseconds") {
  setenv("TZ", "XXX-2", 1);  // two hours east
  tzset();
  const std::chrono::system_clock::time_point noon{std::chrono::milliseconds(1'700'000'000'007)};
  CHECK(time_stamp(noon) == "00:13:20.007 ");
  CHECK(time_stamp(noon + std::chrono::milliseconds(992)) == "00:13:20.999 ");
  CHECK(time_stamp(noon + std::chrono::milliseconds(993)) == "00:13:21.000 ");
}
