#include "ddrun/agent/events_file.hpp"

#include <signal.h>
#include <sys/resource.h>

#include <string>
#include <string_view>

#include "ddrun/base/messages.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"

using namespace ddrun::agent;
using namespace ddrun::test;

TEST_CASE("a line of events that does not fit is lost alone") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("events");
  std::string said;
  ddrun::set_message_sink([&](std::string_view text) { said += text; });
  EventsFile file;
  REQUIRE(file.open(path));
  file.write("{\"event\":\"first\"}\n");
  // As a full disk does: the next line is taken in part.
  const auto before = ::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &limit) == 0);
  const rlimit small{25, limit.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  file.write("{\"event\":\"second\"}\n");
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  ::signal(SIGXFSZ, before);
  file.write("{\"event\":\"third\"}\n");
  file.write("{\"event\":\"fourth\"}\n");
  file.finish();
  ddrun::set_message_sink({});
  CHECK(said == "ddrun: warning: --events: 19 bytes were lost (No space left on device)\n");
  CHECK(read_file(path) == "{\"event\":\"first\"}\n{\"event\n{\"event\":\"third\"}\n{\"event\":\"fourth\"}\n");
}
