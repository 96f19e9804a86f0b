// The program ddrun-etcd: its command line, lines, signals and end.

#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <regex>
#include <set>

#include "by_etcd.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/test/full_pipe.hpp"
#include "ddrun/test/ports.hpp"
#include "etcd_cluster.hpp"

using namespace ddrun;
using namespace ddrun::test;
using namespace std::chrono_literals;

namespace {

/// Beyond any test's duration.
constexpr Milliseconds long_ttl{60'000};

/// A running program with an open stdin.
class EtcdProgram {
 public:
  /// `stdout_fd`: replaces its stdout.
  explicit EtcdProgram(const std::vector<std::string>& endpoints, int stdout_fd = -1)
      : in_(std::move(*make_pipe())),
        run_({DDRUN_TEST_ETCD_PROGRAM, "--endpoints=" + join(endpoints, ",")}, with(in_.read.get(), stdout_fd)) {
    in_.read.reset();
  }
  void send_line(const std::string& line) const {
    const std::string text = line + "\n";
    REQUIRE(write_all(in_.write.get(), text.data(), text.size()));
  }
  void close_stdin() { in_.write.reset(); }
  bool wait_for_output(const std::string& text) { return run_.wait_for_out(text); }
  [[nodiscard]] Run& run() { return run_; }

 private:
  static RunOptions with(int stdin_fd, int stdout_fd) {
    RunOptions options;
    options.in_child = [=] {
      ::dup2(stdin_fd, STDIN_FILENO);
      if (stdout_fd >= 0) ::dup2(stdout_fd, STDOUT_FILENO);
    };
    return options;
  }
  Pipe in_;
  Run run_;
};

Outcome run_with_input(const std::string& input, const std::vector<std::string>& options = {"--endpoints=127.0.0.1:1"},
                       const std::vector<std::pair<std::string, std::string>>& env = {}) {
  std::vector<std::string> argv{DDRUN_TEST_ETCD_PROGRAM};
  argv.insert(argv.end(), options.begin(), options.end());
  RunOptions run;
  run.input = input;
  run.env = env;
  return Run(argv, run).wait();
}

/// The single line on stderr.
std::string sentence(const Outcome& outcome) {
  CAPTURE(outcome.out, outcome.err);
  CHECK(split(outcome.err, '\n').size() == 2);
  return outcome.err;
}

std::string leader_in(const EtcdCluster& cluster) {
  return cluster.etcdctl({"get", "--print-value-only", "/ddrun/job/leader"});
}

std::string first_line(const std::string& text, const std::string& beginning) {
  for (const auto& line : split(text, '\n')) {
    if (line.starts_with(beginning)) return line;
  }
  return {};
}

}  // namespace

TEST_CASE("ddrun-etcd: invalid input ends it with one sentence") {
  struct Wrong {
    std::string lines;
    std::string error;
  };
  const std::string job = "job 1 5000 x\n";
  const Wrong wrong = GENERATE_COPY(
      Wrong{"hello\n", "was told what is not in the protocol: 'hello'\n"},
      Wrong{"tick 1\n", "was told what is not in the protocol before a job: 'tick 1'\n"},
      Wrong{"job 2 x\n", "speaks version 1 of the lease's protocol, and was told version 2\n"},
      Wrong{job + job, "was told what is not in the protocol, a second job: 'job 1 5000 x'\n"},
      Wrong{job + "tick 0\n", "was told what is not in the protocol: 'tick 0'\n"},
      Wrong{job + "tick 1\ntick 2\n", "was told tick 2, which is not due\n"},
      Wrong{job + "campaign a b\n", "was told what is not in the protocol: 'campaign a b'\n"},
      Wrong{job + std::string(65 * 1024, 'x'), "was told a line that is longer than 64 KiB\n"},
      Wrong{"job 1 1999 x\n", "a lease's time to live is 2 seconds or more, and whole seconds, not 1.999\n"},
      Wrong{"job 1 99999999999999999999 x\n",
            "was told what is not in the protocol: 'job 1 99999999999999999999 x'\n"});
  const auto outcome = run_with_input(wrong.lines);
  CHECK(sentence(outcome) == wrong.error);
  CHECK(outcome.code() == 2);
}

TEST_CASE("ddrun-etcd: it exits at the end of its stdin") {
  for (const auto* lines : {"", "job 1 5000 x\n", "job 1 5000 x\ncampaign a\ntick 1\n", "job 1 50"}) {
    CAPTURE(lines);
    const auto outcome = run_with_input(lines);
    CHECK(outcome.code() == 0);
    CHECK(outcome.err.empty());
  }
}

TEST_CASE("ddrun-etcd: wrong usage is refused in one line, and a password is not printed") {
  struct Wrong {
    std::vector<std::string> options;
    std::string error;
  };
  for (const auto& wrong : {Wrong{{}, "--endpoints is required"}, Wrong{{"--endpoints="}, "--endpoints"},
                            Wrong{{"--endpoints=h", "--candidates=some"}, "--candidates"},
                            Wrong{{"--endpoints=h", "--no-such-option"}, "--no-such-option"}}) {
    const auto outcome = run_with_input("", wrong.options);
    CHECK(outcome.code() == 2);
    CHECK_THAT(sentence(outcome), Catch::Matchers::StartsWith("ddrun-etcd: error: ") && test::contains(wrong.error));
    CHECK(outcome.out.empty());
  }
  for (const auto* user : {"secret", ":secret", ""}) {
    const auto outcome = run_with_input("", {"--endpoints=h"}, {{"DDRUN_ETCD_USER", user}});
    CHECK(outcome.code() == 2);
    CHECK(sentence(outcome) == "ddrun-etcd: error: DDRUN_ETCD_USER is not NAME:PASSWORD\n");
  }
}

TEST_CASE("ddrun-etcd: the manual page has every option of the help, and no other") {
  const auto help = run_with_input("", {"--help"});
  CHECK(help.code() == 0);
  CHECK_THAT(run_with_input("", {"--version"}).out, Catch::Matchers::StartsWith("ddrun-etcd "));
  static const std::regex kName("^ +(?:-h, )?(--[a-z]+)"), kDescribed("^\\.BR? (--[a-z]+)");
  const auto names = [](const std::string& text, const std::regex& kPattern) {
    std::set<std::string> found;
    for (const auto& line : split(text, '\n')) {
      std::smatch match;
      if (std::regex_search(line, match, kPattern)) found.insert(match[1].str());
    }
    return found;
  };
  std::string page = read_file(DDRUN_TEST_DOCUMENTS "/ddrun-etcd.1");
  std::erase(page, '\\');
  const auto known = names(help.out, kName);
  CHECK(known.size() == 8);
  CHECK(names(page, kDescribed) == known);
  CHECK_THAT(page, test::contains("DDRUN_ETCD_USER"));
}

TEST_CASE("ddrun-etcd: without an etcd that answers the first tick is done when its time is over, later ones at once") {
  EtcdProgram program({concat("127.0.0.1:", free_port())});
  program.send_line("job 1 2000 job");
  program.send_line("campaign me%3A1");
  const auto begin = Clock::now();
  program.send_line("tick 1");
  REQUIRE(program.wait_for_output("done 1\n"));
  CHECK(Clock::now() - begin >= ttl);
  CHECK_THAT(program.run().out(), Catch::Matchers::StartsWith("trouble etcd cannot be asked: 127.0.0.1:"));
  program.send_line("tick 2");
  REQUIRE(program.wait_for_output("done 2\n"));
  CHECK(Clock::now() - begin < 2 * ttl * slowness);
  program.close_stdin();
  const auto outcome = program.run().wait();
  CHECK(outcome.code() == 0);
  CHECK(outcome.err.empty());
}

TEST_CASE("ddrun-etcd: a lease counts from the last tick that was read before its request was sent") {
  const EtcdCluster cluster(1);
  EtcdProgram program(cluster.endpoints());
  program.send_line(concat("job 1 ", long_ttl.count(), " job"));
  program.send_line("campaign me%3A1");
  program.send_line("tick 1");
  REQUIRE(program.wait_for_output("mine "));
  REQUIRE(program.wait_for_output(" 1\n"));
  program.send_line("tick 2");
  REQUIRE(program.wait_for_output("done 2\n"));
  REQUIRE(wait_until([&] { return std::regex_search(program.run().out(), std::regex("mine \\d+ 2\n")); }));
  // The request of tick 3 is in flight while tick 4 arrives, which it does not count.
  cluster.stop(0);
  program.send_line("tick 3");
  REQUIRE(program.wait_for_output("done 3\n"));
  program.send_line("tick 4");
  REQUIRE(program.wait_for_output("done 4\n"));
  cluster.resume(0);
  REQUIRE(wait_until([&] { return std::regex_search(program.run().out(), std::regex("mine \\d+ 3\n")); }));
  program.send_line("tick 5");
  REQUIRE(wait_until([&] { return std::regex_search(program.run().out(), std::regex("mine \\d+ 5\n")); }));
  CHECK_FALSE(std::regex_search(program.run().out(), std::regex("mine \\d+ 4\n")));
}

TEST_CASE("ddrun-etcd: without ticks no lease is acquired or kept") {
  const EtcdCluster cluster(1);
  EtcdProgram program(cluster.endpoints());
  program.send_line("job 1 2000 job");
  program.send_line("tick 1");
  REQUIRE(program.wait_for_output("done 1\n"));
  program.send_line("campaign me%3A1");
  program.send_line("tick 2");
  REQUIRE(program.wait_for_output("mine "));
  CHECK(leader_in(cluster) == "me:1\n");
  // It steps down by its clock, and does not acquire the free lease then.
  REQUIRE(program.wait_for_output("none\n"));
  REQUIRE(wait_until([&] { return leader_in(cluster).empty(); }));
  EtcdProgram other(cluster.endpoints());
  other.send_line("job 1 2000 job");
  other.send_line("campaign other%3A1");
  other.send_line("tick 1");
  REQUIRE(other.wait_for_output("mine "));
  REQUIRE(program.wait_for_output("leader "));
  CHECK(first_line(program.run().out(), "leader ").ends_with(" other%3A1"));
}

TEST_CASE("ddrun-etcd: signals to the whole job are ignored") {
  const EtcdCluster cluster(1);
  EtcdProgram program(cluster.endpoints());
  program.send_line(concat("job 1 ", long_ttl.count(), " job"));
  program.send_line("campaign me%3A1");
  program.send_line("tick 1");
  REQUIRE(program.wait_for_output("mine "));
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) program.run().signal(signal);
  program.send_line("tick 2");
  REQUIRE(program.wait_for_output("done 2\n"));
  // It ends at the end of its stdin, and gives the lease back.
  CHECK(leader_in(cluster) == "me:1\n");
  program.close_stdin();
  const auto outcome = program.run().wait();
  CHECK(outcome.code() == 0);
  CHECK(outcome.err.empty());
  CHECK(leader_in(cluster).empty());
}

TEST_CASE("ddrun-etcd: a reader that does not read does not block it") {
  const EtcdCluster cluster(1);
  FullPipe full;
  EtcdProgram program(cluster.endpoints(), full.write_end());
  program.send_line(concat("job 1 ", long_ttl.count(), " job"));
  program.send_line("campaign me%3A1");
  program.send_line("tick 1");
  REQUIRE(wait_until([&] { return leader_in(cluster) == "me:1\n"; }));
  REQUIRE(full.wait_for("done 1\n"));
  REQUIRE(full.wait_for("mine "));
  program.close_stdin();
  CHECK(program.run().wait().code() == 0);
  CHECK(leader_in(cluster).empty());
}

TEST_CASE("ddrun-etcd: a machine whose ddrun is killed with -9 is followed at once") {
  const EtcdCluster cluster;
  etcd::EtcdOptions etcd;
  etcd.endpoints = cluster.endpoints();
  const auto make = by_etcd(etcd, {"job", long_ttl});
  const std::string tag = concat("DDRUN_TEST_KILLED=", ::getpid());
  struct Child {
    const pid_t pid = ::fork();
    ~Child() {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  };
  auto first = std::make_unique<Child>();
  if (first->pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::putenv(const_cast<char*>(tag.c_str()));
    Candidate candidate("first", make);
    candidate.lease->campaign("first:1");
    candidate.io.run();
    ::_exit(1);
  }
  Candidates candidates;
  Candidate& second = candidates.add("second", make);
  REQUIRE(candidates.run_until([&] { return second.follows("first:1"); }));
  second.lease->campaign("second:1");
  CHECK(processes_with(tag).size() == 1);
  first.reset();
  // Long before the lease would expire.
  REQUIRE(candidates.run_until([&] { return second.is_leader(); }, 20s));
  CHECK(wait_until([&] { return processes_with(tag).empty(); }));
}
