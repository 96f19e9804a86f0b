// --hosts: however it ends, nothing is left on any host.
#include <algorithm>
#include <csignal>

#include "ssh_hosts.hpp"

using namespace ddrun::test;

namespace {

/// A job of two workers on one host that stays until it is ended; each has a child that has left its session.
Words lasting(const SshHosts& hosts, const Words& options = {}) {
  Words all{"-n", "2"};
  all.insert(all.end(), options.begin(), options.end());
  return hosts.job("one", all, {"stray", "forever", ";", "print", "up", "forever"});
}

bool is_stopped_worker(pid_t pid) {
  return is_stopped(pid) && read_file("/proc/" + std::to_string(pid) + "/cmdline").starts_with(DDRUN_TEST_WORKER);
}

void wait_until_up(Run& run) {
  REQUIRE(wait_until([&] { return count(run.out(), "up\n") == 2; }));
}

}  // namespace

TEST_CASE("A second signal leaves the grace time out") {
  const SshHosts hosts;
  Run run(hosts.job("one", {"--shutdown-timeout=600s"}, {"ignore", "TERM", "ignore", "INT", "print", "up", "forever"}));
  REQUIRE(run.wait_for_out("up\n"));
  run.signal(SIGINT);
  REQUIRE(run.wait_for_err("stopping 1 worker"));
  REQUIRE(insist(run, SIGINT));
  const auto outcome = run.wait();
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == -SIGINT);
  CHECK(run.all_gone());
  CHECK(hosts.all_gone());
}

// The coordinator waits half a minute for a host that does not stop.
TEST_CASE("Hosts that stop are not given up with the one whose disk hangs", "[full]") {
  needs_preload();
  SshHosts hosts;
  const std::string logs = hosts.file("logs");
  const std::string back = hosts.file("back");
  for (const std::string& variable : {std::string("LD_PRELOAD=") + DDRUN_TEST_HELD_WRITES,
                                      "DDRUN_TEST_HELD_PATH=" + logs, "DDRUN_TEST_HELD_UNTIL=" + back}) {
    hosts.set("held", variable);
  }
  hosts.add("held");
  Run run(hosts.job("one,held", {"-t=3", "--log-dir=" + logs, "--shutdown-timeout=0"}, {"print", "up", "forever"}));
  REQUIRE(run.wait_for_out("up\n"));
  REQUIRE(wait_until([&] { return ::access((logs + ".held").c_str(), F_OK) == 0; }));
  run.signal(SIGINT);
  const bool ended = wait_until([&] { return ssh_of(run, "one") == 0; }, std::chrono::seconds(60));
  write_file(back, "");
  const auto outcome = run.wait();
  DDRUN_SHOW(outcome);
  CHECK(ended);
  CHECK(outcome.code() == -SIGINT);
  CHECK_FALSE(has(outcome.err, "host one has not ended in time"));
  CHECK(hosts.all_gone());
}

TEST_CASE("A signal that does not end the job reaches the workers") {
  const SshHosts hosts;
  Run run(hosts.job("one", {"-n", "2"}, {"tell", "USR1", "print", "up", "heard", "1", "exit", "0"}));
  wait_until_up(run);
  run.signal(SIGUSR1);
  const auto outcome = run.wait();
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(hosts.all_gone());
}

TEST_CASE("Ctrl-Z stops workers and ddrun, and they go on together") {
  const SshHosts hosts;
  const TemporaryDirectory dir;
  Run run(hosts.job("one", {"-n", "2"}, {"print", "up", "await", dir.file("go"), "print", "done"}));
  wait_until_up(run);
  const auto stopped = [&] {
    const auto on_host = hosts.living();
    return std::count_if(on_host.begin(), on_host.end(), is_stopped_worker) == 2 && is_stopped(run.pid());
  };
  run.signal(SIGTSTP);
  CHECK(wait_until(stopped));
  write_file(dir.file("go"), "");
  run.signal(SIGCONT);
  const auto outcome = run.wait();
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(count(outcome.out, "done\n") == 2);
  CHECK(run.all_gone());
  CHECK(hosts.all_gone());
}

TEST_CASE("Workers that ignore SIGHUP get SIGTERM when ddrun is killed where it was called") {
  const SshHosts hosts;
  const TemporaryDirectory dir;
  Run run(hosts.job("one", {"--shutdown-timeout=600s"},
                    {"ignore", "HUP", "tell", "TERM", "print", "up", "heard", "1", "touch", dir.file("told")}));
  REQUIRE(run.wait_for_out("up\n"));
  run.signal(SIGKILL);
  CHECK(wait_until([&] { return ::access(dir.file("told").c_str(), F_OK) == 0; }));
  run.wait();
  CHECK(run.all_gone());
  CHECK(hosts.all_gone());
}

TEST_CASE("A killed ddrun or all of its processes at once leave nothing on the host") {
  const SshHosts hosts;
  for (const bool all : {false, true}) {
    CAPTURE(all);
    Run run(lasting(hosts));
    wait_until_up(run);
    const auto on_host = hosts.living();
    if (!all) run.signal(SIGKILL);
    for (const pid_t pid : all ? run.living() : std::vector<pid_t>()) {
      if (std::find(on_host.begin(), on_host.end(), pid) == on_host.end()) run.signal(pid, SIGKILL);
    }
    run.wait();
    CHECK(run.all_gone());
    CHECK(hosts.all_gone());
  }
}

TEST_CASE("Whichever of the hosts processes is killed nothing is left") {
  const SshHosts hosts;
  std::size_t processes = 8;
  for (std::size_t victim = 0; victim < processes; ++victim) {
    CAPTURE(victim);
    Run run(lasting(hosts));
    wait_until_up(run);
    REQUIRE(wait_until([&] { return hosts.living().size() >= 6; }));
    const auto living = hosts.living();
    processes = living.size();
    if (victim >= living.size()) break;
    ::kill(living[victim], SIGKILL);
    // A stray may go unnoticed: then the job goes on.
    if (!wait_until([&] { return run.living().empty(); }, std::chrono::seconds(2))) run.signal(SIGTERM);
    const auto outcome = run.wait(std::chrono::seconds(90));
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() != 0);
    CHECK(run.all_gone());
    CHECK(hosts.all_gone());
  }
}

TEST_CASE("A ddrun that is killed while it is copied leaves no copy") {
  SshHosts hosts;
  const std::string scratch = hosts.add_bare();
  Run run(hosts.unseen(hosts.shell("bare", {}, "echo up; sleep 1000")));
  REQUIRE(wait_until([&] { return SshHosts::copies_in(scratch) > 0; }));
  run.signal(SIGKILL);
  run.wait();
  CHECK(run.all_gone());
  CHECK(hosts.all_gone());
  CHECK(wait_until([&] { return SshHosts::copies_in(scratch) == 0; }));
}

TEST_CASE("A copied ddrun that is killed leaves no copy") {
  SshHosts hosts;
  const std::string scratch = hosts.add_bare();
  // All that the host has is killed below: a process started after the listing would be left running.
  Run run(hosts.unseen(hosts.shell("bare", {}, "sleep 1000 & echo up; wait")));
  REQUIRE(run.wait_for_out("up\n"));
  // A process in the middle of its exec has no environment to be known by.
  REQUIRE(wait_until([&] {
    const auto living = hosts.living();
    return std::any_of(living.begin(), living.end(), [](pid_t pid) {
      return read_file("/proc/" + std::to_string(pid) + "/cmdline").starts_with("sleep");
    });
  }));
  for (const pid_t pid : hosts.living()) ::kill(pid, SIGKILL);
  CHECK(run.wait().code() == 125);
  CHECK(run.all_gone());
  CHECK(hosts.all_gone());
  CHECK(SshHosts::copies_in(scratch) == 0);
}
