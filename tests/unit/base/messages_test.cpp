#include "ddrun/base/messages.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <thread>

#include "ddrun/test/catch.hpp"

using namespace ddrun;

TEST_CASE("messages go to the sink of the thread that set it, and to stderr without one") {
  std::string said;
  set_message_sink([&](std::string_view line) { said += line; });
  say(Level::warning, "one");
  set_message_sink({});
  say(Level::debug, "not shown");
  CHECK(said == "ddrun: warning: one\n");
}

TEST_CASE("a thread that does not own the sink never touches it") {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::close(STDERR_FILENO);
    std::signal(SIGABRT, SIG_DFL);  // the test runner's own handler would report a failure
    bool touched = false;
    set_message_sink([&](std::string_view) { touched = true; });
    std::thread([] { say(Level::warning, "from elsewhere"); }).join();
    ::_exit(touched ? 1 : 0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
#ifdef NDEBUG
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
#else
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT));  // a build with assertions says so at once
#endif
}
