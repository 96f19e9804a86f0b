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

TEST_CASE("control characters in messages are replaced") {
  CHECK(sanitize_for_terminal("two\nlines, a\ttab, caf\xC3\xA9 \xE2\x82\xAC") ==
        "two\n  lines, a\ttab, caf\xC3\xA9 \xE2\x82\xAC");
  CHECK(sanitize_for_terminal("\033]0;title\a b\b\r\x7F") == "?]0;title? b???");
  CHECK(sanitize_for_terminal("eight bits: \xC2\x9B"
                              "2J, and \xC2\xA0") == "eight bits: ?2J, and \xC2\xA0");
  CHECK(sanitize_for_terminal("\xC2") == "\xC2");
  CHECK(sanitize_for_terminal("bidi: \xE2\x80\xAE-\xD8\x9C-\xE2\x80\x90") == "bidi: ?-?-\xE2\x80\x90");
  std::string said;
  set_message_sink([&](std::string_view line) { said += line; });
  say(Level::notice, "waiting for \033[2Jnode7");
  set_message_sink({});
  CHECK(said == "ddrun: waiting for ?[2Jnode7\n");
}

TEST_CASE("a name with newlines cannot imitate a message") {
  std::string said;
  set_message_sink([&](std::string_view line) { said += line; });
  say(Level::notice, "waiting for node7\nddrun: error: rank 0 failed\n\nddrun: warning: 2\n");
  set_message_sink({});
  CHECK(said == "ddrun: waiting for node7\n  ddrun: error: rank 0 failed\n\n  ddrun: warning: 2\n\n");
  CHECK(sanitize_for_terminal("a\n b\n") == "a\n b\n");
}

TEST_CASE("a thread that does not own the sink does not use it") {
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
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT));  // a build with assertions aborts
#endif
}
