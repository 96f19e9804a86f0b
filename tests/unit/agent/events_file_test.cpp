#include "ddrun/agent/events_file.hpp"

#include <signal.h>
#include <sys/resource.h>

#include <string>
#include <string_view>

#include "ddrun/base/messages.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"
#include "ddrun/test/processes.hpp"

using namespace ddrun::agent;
using namespace ddrun::test;

TEST_CASE("an event of another agent is one line without control characters") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("events");
  EventsFile file;
  REQUIRE(file.open(path));
  file.write_line("{\"event\":\"lost\"}\n{\"event\":\"verdict\"}");
  file.write("{\"why\":\"\033[2J\x7F\xC2\x9B caf\xC3\xA9 \xC2\xA0\xC2\"}\n");
  file.finish();
  const std::string written = read_file(path);
  const std::size_t second = written.find('\n') + 1;
  CHECK(written.substr(0, second).ends_with(",\"event\":\"lost\"} {\"event\":\"verdict\"}\n"));
  CHECK(written.substr(second) == "{\"why\":\" [2J\\u007f\\u009b caf\xC3\xA9 \xC2\xA0\xC2\"}\n");
}

TEST_CASE("a line of events that does not fit loses no other line") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("events");
  std::string said;
  ddrun::set_message_sink([&](std::string_view text) { said += text; });
  EventsFile file;
  REQUIRE(file.open(path));
  file.write("{\"event\":\"first\"}\n");
  REQUIRE(wait_until([&] { return !read_file(path).empty(); }));
  // Like a full disk, a file size limit causes a partial write.
  const auto before = ::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &limit) == 0);
  const rlimit small{25, limit.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  file.write("{\"event\":\"second\"}\n");
  const bool torn = wait_until([&] { return read_file(path) == "{\"event\":\"first\"}\n{\"event"; });
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  ::signal(SIGXFSZ, before);
  REQUIRE(torn);
  file.write("{\"event\":\"third\"}\n");
  file.write("{\"event\":\"fourth\"}\n");
  file.finish();
  ddrun::set_message_sink({});
  CHECK(said == "ddrun: warning: --events: 19 bytes were lost (File too large)\n");
  CHECK(read_file(path) == "{\"event\":\"first\"}\n{\"event\n{\"event\":\"third\"}\n{\"event\":\"fourth\"}\n");
}
