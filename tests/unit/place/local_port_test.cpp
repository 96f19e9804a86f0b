#include "local_port.hpp"

#include <unistd.h>

#include <thread>

#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/processes.hpp"

using namespace ddrun;
using namespace ddrun::bench;
using namespace std::chrono_literals;

namespace {

std::string job(const char* name) { return concat("test-", getpid(), '-', name); }

}  // namespace

TEST_CASE("rank 0 names those that did not ask for the port") {
  const auto teller = PortTeller::open(job("missing"));
  REQUIRE(teller);
  std::thread rank([] { CHECK(ask_port(job("missing"), 2, Clock::now() + 10s) == std::uint16_t{4711}); });
  const auto told = teller->tell(4711, 4, Clock::now() + 300ms);
  rank.join();
  REQUIRE(!told);
  CHECK(told.error().code == Errc::timeout);
  CHECK(told.error().message == "ranks 1,3 did not come in time");
}

TEST_CASE("ranks that come before rank 0 wait for it") {
  Result<std::uint16_t> port;
  std::thread rank([&] { port = ask_port(job("early"), 1, Clock::now() + 10s); });
  const auto teller = PortTeller::open(job("early"));
  REQUIRE(teller);
  CHECK(teller->tell(4711, 2, Clock::now() + 10s));
  rank.join();
  CHECK(port == std::uint16_t{4711});
}

TEST_CASE("a rank 0 that does not come is said to be late") {
  const auto port = ask_port(job("never"), 1, Clock::now() + 50ms);
  REQUIRE(!port);
  CHECK(port.error().message == "rank 0 did not come in time");
}

TEST_CASE("a second rank 0 of the same job is refused, and a later one is not") {
  {
    const auto first = PortTeller::open(job("twice"));
    REQUIRE(first);
    const auto second = PortTeller::open(job("twice"));
    REQUIRE(!second);
    CHECK(second.error().code == Errc::unavailable);
  }
  CHECK(PortTeller::open(job("twice")));
}

TEST_CASE("all processes under a launcher name the same one, shells between or not") {
  const std::string launcher = launcher_process("DDRUN_TEST_NO_SUCH_VARIABLE", "1");
  CHECK(launcher.starts_with(concat(getppid(), '.')));
  CHECK(launcher == launcher_process("DDRUN_TEST_NO_SUCH_VARIABLE", "1"));
  // What this process's parent has too, as a shell between would, leads further up.
  const auto environment = read_small_file(concat("/proc/", getppid(), "/environ"));
  if (!environment || environment->empty()) ddrun::test::skip("the environment of the parent cannot be read");
  const std::string entry = split(*environment, '\0').front();
  const std::size_t equals = entry.find('=');
  const std::string above = launcher_process(entry.substr(0, equals), entry.substr(equals + 1));
  CHECK(above != launcher);
}
