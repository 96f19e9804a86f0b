#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "../job.hpp"

using namespace ddrun::test;

namespace {

void wait_for_all(Run& run, std::size_t workers) {
  REQUIRE(wait_until([&] { return count(run.out(), "ready\n") == workers; }));
}

}  // namespace

TEST_CASE("INT TERM HUP and QUIT are passed on once and end the job in order") {
  for (const auto& [number, name] : {std::pair{SIGINT, "INT"}, {SIGTERM, "TERM"}, {SIGHUP, "HUP"}, {SIGQUIT, "QUIT"}}) {
    const char* variable = number == SIGTERM ? "DDRUN_NO_PIDFD" : "DDRUN_TEST_NOTHING";
    RunOptions options;
    options.env = {{variable, "1"}};
    Run run(job({"-n", "2"}, {"tell", name, "print", "ready", "heard", "1", "print", "saving", "exit", "0"}), options);
    wait_for_all(run, 2);
    run.signal(number);
    const auto outcome = run.wait();
    CHECK(run.all_gone());
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() == -number);
    CHECK_FALSE(WCOREDUMP(outcome.wait_status));
    CHECK(count(outcome.out, std::string("got ") + name + "\n") == 2);
    CHECK(count(outcome.out, "saving\n") == 2);
    CHECK(has(outcome.err, std::string("ddrun: SIG") + name + " from pid " + std::to_string(::getpid())));
    CHECK(has(outcome.err, std::string("ddrun: stopped by SIG") + name + " from pid " + std::to_string(::getpid())));
    CHECK(last_line(outcome.err) == "  workers: ranks 0,1 stopped by ddrun");
  }
}

TEST_CASE("The same ending signal again, after a second, kills at once") {
  Run run(job({"-n", "2"}, {"ignore", "TERM", "print", "ready", "forever"}));
  wait_for_all(run, 2);
  const auto begin = std::chrono::steady_clock::now();
  CHECK(insist(run, SIGTERM));
  CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::seconds(1));
  const auto outcome = run.wait(std::chrono::seconds(10));
  CHECK(run.all_gone());
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == -SIGTERM);
  CHECK(last_line(outcome.err) == "  workers: ranks 0,1 killed by ddrun (SIGKILL)");
}

TEST_CASE("A job under GNU timeout has its grace time") {
  const TemporaryDirectory dir;
  auto words = job({"-n", "2"}, {"tell", "TERM", "print", "ready", "heard", "1", "await", dir.file("go"), "print",
                                 "saved", "exit", "0"});
  words.insert(words.begin(), {"timeout", "--preserve-status", "1"});
  RunOptions options;
  options.own_group = false;  // it makes one, and signals that as well as its child
  Run run(words, options);
  REQUIRE(wait_until([&] { return count(run.out(), "got TERM\n") == 2; }));
  write_file(dir.file("go"), "");
  const auto outcome = run.wait();
  CHECK(run.all_gone());
  DDRUN_SHOW(outcome);
  CHECK(count(outcome.out, "saved\n") == 2);
  CHECK_FALSE(has(outcome.err, "killing"));
}

TEST_CASE("USR1 USR2 CONT TSTP and WINCH are passed through and the job goes on") {
  const std::pair<int, const char*> signals[] = {
      {SIGUSR1, "USR1"}, {SIGUSR2, "USR2"}, {SIGCONT, "CONT"}, {SIGTSTP, "TSTP"}, {SIGWINCH, "WINCH"}};
  Words verbs;
  for (const auto& signal : signals) verbs.insert(verbs.end(), {"tell", signal.second});
  verbs.insert(verbs.end(), {"print", "ready", "forever"});
  RunOptions options;
  // Without a shell that could continue the job, Ctrl-Z stops no process.
  options.own_group = false;
  options.in_child = [] { ::setsid(); };
  Run run(job({"-n", "2"}, verbs), options);
  wait_for_all(run, 2);
  for (const auto& [number, name] : signals) {
    run.signal(number);
    const std::string wanted = std::string("got ") + name + "\n";
    INFO(name);
    CHECK(wait_until([&] { return count(run.out(), wanted) == 2; }));
  }
  run.signal(SIGTERM);
  const auto outcome = run.wait();
  CHECK(run.all_gone());
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == -SIGTERM);
  for (const auto& signal : signals) {
    // The CONT that belongs to an orderly stop comes on top.
    const std::size_t times = count(outcome.out, std::string("got ") + signal.second + "\n");
    CHECK(times >= 2);
    CHECK(times <= (signal.first == SIGCONT ? 4u : 2u));
  }
}

TEST_CASE("Which signals end the job can be chosen") {
  Run run(job({"-n", "2", "--signals-to-handle=SIGUSR1"},
              {"tell", "TERM", "tell", "USR1", "env", "TORCHELASTIC_SIGNALS_TO_HANDLE", "print", "ready", "heard", "2",
               "exit", "0"}));
  wait_for_all(run, 2);
  run.signal(SIGTERM);
  CHECK(wait_until([&] { return count(run.out(), "got TERM\n") == 2; }));
  CHECK(run.living().size() == 5);
  run.signal(SIGUSR1);
  const auto outcome = run.wait();
  CHECK(run.all_gone());
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == -SIGUSR1);
  CHECK(count(outcome.out, "got USR1\n") == 2);
  CHECK(count(outcome.out, "TORCHELASTIC_SIGNALS_TO_HANDLE=SIGUSR1\n") == 2);
}

TEST_CASE("Signals that came in ignored do no harm to watching and workers start clean") {
  RunOptions options;
  options.in_child = [] {
    for (const int number : {SIGCHLD, SIGUSR1, SIGPIPE, SIGALRM}) ::signal(number, SIG_IGN);
  };
  const auto outcome = finish(job({"-n", "2"}, {"facts", "rank", "1", "exit", "3", ";", "forever"}), options);
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 3);
  CHECK(has(outcome.out, "[1] ignored\n"));
  CHECK(has(outcome.out, "[1] blocked\n"));
}

TEST_CASE("A signal while workers are being started ends the job") {
  for (int i = 0; i < 2; ++i) {
    Run run(job({"-n", "300"}, {"forever"}));
    REQUIRE(wait_until([&] { return descendants_of(run.pid()).size() >= 3; }));
    run.signal(SIGTERM);
    const auto outcome = run.wait();
    CHECK(run.all_gone());
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() == -SIGTERM);
  }
}

TEST_CASE("Process 1 of a container, which no signal ends, exits with 128 and its number") {
  const TemporaryDirectory dir;
  auto words = job({"-n", "2"}, {"touch", dir.file("ready"), "forever"});
  words.insert(words.begin(), {"unshare", "--pid", "--fork", "--mount-proc"});
  Run run(words);
  if (!wait_until([&] { return ::access(dir.file("ready").c_str(), F_OK) == 0; }, std::chrono::seconds(5))) {
    skip("no process namespace can be made here");
  }
  run.signal(descendants_of(run.pid()).front(), SIGTERM);
  const auto outcome = run.wait();
  CHECK(run.all_gone());
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 128 + SIGTERM);
}

TEST_CASE("A signal that comes while the report is written loses neither report nor status") {
  const TemporaryDirectory dir;
  const std::string report = dir.file("report");
  REQUIRE(::mkfifo(report.c_str(), 0600) == 0);
  const std::string events = dir.file("events");
  Run run(job({"--report=" + report, "--events=" + events}, {"print", "over", "exit", "3"}));
  // It is not read until the signal is pending, which comes when the job's end is known.
  REQUIRE(wait_until([&] { return has(read_file(events), "\"verdict\""); }));
  run.signal(SIGTERM);
  const std::string text = read_file(report);
  const auto outcome = run.wait();
  CHECK(run.all_gone());
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 3);
  CHECK(has(text, "\"exit_code\": 3"));
}
