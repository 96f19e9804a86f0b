// Helper programs: output, failures, no process left.

#include "ddrun/helper/run.hpp"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <optional>

#include "ddrun/process/child_watcher.hpp"
#include "ddrun/process/process_tree.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"

using namespace ddrun;
using namespace std::chrono_literals;

namespace {

constexpr helper::Limits generous{20s};

/// Runs the test with or without pidfds.
class Pidfds {
 public:
  explicit Pidfds(bool there) {
    if (!there) ::setenv("DDRUN_NO_PIDFD", "1", 1);
  }
  ~Pidfds() { ::unsetenv("DDRUN_NO_PIDFD"); }
};

}  // namespace

TEST_CASE("a helper's whole output and status are returned") {
  const bool pidfd = GENERATE(true, false);
  CAPTURE(pidfd);
  const Pidfds pidfds(pidfd);
  const auto said = helper::run({"sh", "-c", "echo out; echo err >&2; exit 3"}, generous);
  REQUIRE(said);
  CHECK(said->out == "out\n");
  CHECK(said->err == "err\n");
  CHECK(said->status == ExitStatus(Exited{3}));
  CHECK_FALSE(said->succeeded());

  // More than a pipe's capacity, both ways.
  const std::string much(500'000, 'x');
  const auto copied = helper::run({"cat"}, generous, much);
  REQUIRE(copied);
  CHECK(copied->succeeded());
  CHECK(copied->out == much);
  CHECK(helper::run({"cat"}, generous)->out.empty());
  CHECK_FALSE(process::has_children());
}

TEST_CASE("a helper starts with default signals, whatever this process ignores and blocks") {
  sigset_t one, before;
  ::sigemptyset(&one);
  ::sigaddset(&one, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &one, &before);
  const auto old = ::signal(SIGTERM, SIG_IGN);
  const auto said = helper::run({"sh", "-c", "kill -TERM $$; echo alive"}, generous);
  ::signal(SIGTERM, old);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  REQUIRE(said);
  CHECK(said->status == ExitStatus(Signaled{SIGTERM, false}));
  CHECK(said->out.empty());
}

TEST_CASE("a helper that cannot be started is an error that says why") {
  const auto missing = helper::run({"ddrun-no-such-program"}, generous);
  REQUIRE_FALSE(missing);
  CHECK(missing.error().code == Errc::not_found);
  CHECK(missing.error().message == "cannot start ddrun-no-such-program: No such file or directory");
  CHECK(missing.error().cause == std::errc::no_such_file_or_directory);

  test::TemporaryDirectory directory;
  const auto text = helper::run({directory.file("text", "no program")}, generous);
  REQUIRE_FALSE(text);
  CHECK(text.error().code == Errc::unavailable);
  CHECK_FALSE(process::has_children());
}

TEST_CASE("a helper that takes too long is killed") {
  const bool pidfd = GENERATE(true, false);
  CAPTURE(pidfd);
  const Pidfds pidfds(pidfd);
  const auto late = helper::run({"sleep", "1000"}, {50ms});
  REQUIRE_FALSE(late);
  CHECK(late.error().code == Errc::timeout);
  CHECK(late.error().message == "sleep did not end within 50 ms");
  CHECK_FALSE(process::has_children());
}

TEST_CASE("a helper over the output limit is killed, and its output up to the limit is returned") {
  const auto cut = helper::run({"yes"}, {20s, 10'000});
  REQUIRE(cut);
  CHECK_FALSE(cut->succeeded());
  const auto* const signaled = std::get_if<Signaled>(&cut->status);
  CHECK((signaled != nullptr && signaled->signal == SIGXFSZ));
  CHECK(cut->out.size() == 10'000);
  CHECK(cut->out.starts_with("y\ny\n"));
  CHECK_FALSE(process::has_children());
}

TEST_CASE("a helper runs while its caller goes on, and is gone when the caller drops it") {
  const bool pidfd = GENERATE(true, false);
  CAPTURE(pidfd);
  const Pidfds pidfds(pidfd);
  boost::asio::io_context context;
  int called = 0;
  helper::Running run;
  // The callback runs later, even if the start failed, and may start the next helper.
  run = helper::start(context.get_executor(), {"ddrun-no-such-program"}, generous, [&](const auto& got) {
    CHECK_FALSE(got);
    ++called;
    run = helper::start(context.get_executor(), {"true"}, generous, [&](const auto& next) {
      CHECK((next && next->succeeded()));
      ++called;
    });
  });
  CHECK(called == 0);
  context.run();
  CHECK(called == 2);

  run = helper::start(context.get_executor(), {"sleep", "1000"}, generous, [&](const auto&) { ++called; });
  context.restart();
  context.poll();
  CHECK(process::has_children());
  run.reset();
  CHECK_FALSE(process::has_children());
  context.run();  // nothing is waited for any more
  CHECK(called == 2);
}

TEST_CASE("a helper that the watcher of all children reaps first still reports its status") {
  const bool pidfd = GENERATE(true, false);
  CAPTURE(pidfd);
  const Pidfds pidfds(pidfd);
  boost::asio::io_context context;
  int orphans = 0;
  process::ChildWatcher watcher{context.get_executor(), [](const process::ChildEnd&) {}, [&] { ++orphans; }};
  std::optional<Result<helper::Output>> said;
  test::TemporaryDirectory directory;
  const std::string go = directory.file("go");
  const auto run = helper::start(context.get_executor(),
                                 {"sh", "-c", "until [ -e " + go + " ]; do sleep 0.01; done; echo out; exit 3"},
                                 generous, [&](Result<helper::Output> got) { said = std::move(got); });
  directory.file("go", "");
  siginfo_t info{};
  while (::waitid(P_ALL, 0, &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
  watcher.reap();
  CHECK(orphans == 1);
  CHECK_FALSE(process::has_children());
  CHECK_FALSE(said);
  context.run();
  REQUIRE((said && *said));
  CHECK((*said)->status == ExitStatus(Exited{3}));
  CHECK((*said)->out == "out\n");
}

TEST_CASE("a registered child counts as a helper until it is reaped") {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(3);
  helper::register_child(pid);
  CHECK(helper::registered_children() == std::vector<pid_t>{pid});
  CHECK(helper::running_helpers() == std::vector<pid_t>{pid});
  siginfo_t info{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT) == 0);
  CHECK(helper::reap(pid));
  CHECK(helper::running_helpers().empty());
  CHECK_FALSE(helper::reap(pid));
  CHECK_FALSE(process::has_children());
}
