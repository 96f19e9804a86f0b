// --hosts while hosts are being reached. A script plays ssh: a host is this machine, once a file of its name is there.
#include <csignal>

#include "../job.hpp"

using namespace ddrun::test;

namespace {

class GatedHosts {
 public:
  void open(const std::string& host) const { write_file(directory_.file(host), ""); }
  /// "ddrun --ssh=… --hosts=… options… -- words…", with TEST_HOST in the environment of each host, and a program that
  /// only host a has in its PATH.
  [[nodiscard]] Words job(const std::string& hosts, const Words& options, const Words& words) const {
    Words all = command({"--ssh=" + reach_, "--hosts=" + hosts, "--label=none"});
    all.insert(all.end(), options.begin(), options.end());
    all.emplace_back("--");
    all.insert(all.end(), words.begin(), words.end());
    return all;
  }
  [[nodiscard]] std::string file(const std::string& name) const { return directory_.file(name); }

 private:
  TemporaryDirectory directory_;
  std::string program_ = directory_.file("only-there", "#!/bin/sh\n", 0755);
  std::string reach_ = directory_.file("reach", R"(#!/bin/sh
cd "${0%/*}"
case $1 in bad*) echo "no route to $1" >&2; exit 255;; esac
while [ ! -e "$1" ]; do sleep 0.02; done
[ "$1" != a ] || PATH=$PWD:$PATH
cd "$OLDPWD"
TEST_HOST=$1 exec /bin/sh -c "$2"
)",
                                       0755);
};

/// The processes on hosts that wait for their part of the job, one for each host.
std::vector<pid_t> waiting(const Run& run) {
  std::vector<pid_t> found;
  for (const pid_t pid : run.living()) {
    const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
    const auto at = stat.rfind(") ");
    if (at == std::string::npos) continue;
    const std::string parent = "/proc/" + std::to_string(std::stoi(stat.substr(at + 4, 20)));
    const auto is_relay = [](const std::string& process) {
      return has(read_file(process + "/cmdline"), std::string("ddrun\0relay", 11));
    };
    if (is_relay("/proc/" + std::to_string(pid)) && is_relay(parent)) found.push_back(pid);
  }
  return found;
}

/// Ctrl-C ends a job none of whose workers runs, without an error.
void check_interrupt(Run& run) {
  run.signal(SIGINT);
  const auto outcome = run.wait();
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == -SIGINT);
  CHECK(outcome.out.empty());
  CHECK_FALSE(has(outcome.err, "error:"));
  CHECK(run.all_gone());
}

}  // namespace

TEST_CASE("What hosts in a round say after the end of the first one is shown, and their status counts") {
  const GatedHosts hosts;
  hosts.open("a");
  hosts.open("b");
  const std::string after = "sh -c 'if [ $TEST_HOST = b ]; then sleep 1; echo late; exit 9; fi'";
  const auto outcome = finish(hosts.job("a,b,c", {"--nnodes=2", "--after=" + after}, {"true"}));
  DDRUN_SHOW(outcome);
  CHECK(has(outcome.out + outcome.err, "late\n"));
  CHECK(outcome.code() == 9);
}

TEST_CASE("A job starts without hosts that fail, and the first of the others runs the coordinator") {
  struct Row {
    const char* hosts;
    const char* nnodes;
    const char* output;
  };
  for (const Row& row : std::vector<Row>{{"a,bad", "1:2", "a 0 of 1\n"},
                                         {"bad,a", "1:2", "a 0 of 1\n"},
                                         {"bad1,bad2,a:1,b:1", "2:4", "a 0 of 2\n"},
                                         {"bad,b,c", "2", "b 0 of 2\n"}}) {
    CAPTURE(row.hosts);
    const GatedHosts hosts;
    for (const char* host : {"a", "b", "c"}) hosts.open(host);
    RunOptions options;
    options.input = "input\n";
    const std::string report = hosts.file("report");
    const auto outcome =
        finish(hosts.job(row.hosts, {std::string("--nnodes=") + row.nnodes, "--report=" + report},
                         {"sh", "-c", "[ $RANK != 0 ] || read line; echo $TEST_HOST $RANK of $WORLD_SIZE$line"}),
               std::move(options));
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() == 0);
    std::string expected(row.output);
    expected.insert(expected.size() - 1, "input");
    CHECK(has(outcome.out, expected));
    CHECK(count(outcome.err, "ddrun: warning: cannot start ddrun on host bad") == (row.hosts[3] == '1' ? 2 : 1));
    CHECK(has(outcome.err, "no route to bad"));
    CHECK(count(outcome.err, "the job starts without it\n") == count(outcome.err, "warning: "));
    CHECK_FALSE(has(outcome.err, "error:"));
    CHECK(has(read_file(report), "\"success\""));
  }
}

TEST_CASE("A host that does not answer is not waited for after the last call, and joins when it does") {
  const GatedHosts hosts;
  hosts.open("b");
  Run run(hosts.job("a,b", {"--nnodes=1:2", "--last-call=0.5"},
                    {"sh", "-c", "echo $TEST_HOST $RANK of $WORLD_SIZE; [ $WORLD_SIZE = 2 ] || exec sleep 1000"}));
  REQUIRE(run.wait_for_out("b 0 of 1\n"));
  hosts.open("a");
  const auto outcome = run.wait();
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(has(outcome.out, "b 0 of 2\n"));
  CHECK(has(outcome.out, "a 1 of 2\n"));
  CHECK(run.all_gone());
}

TEST_CASE("Ctrl-C while hosts are waited for ends the job") {
  const GatedHosts hosts;
  hosts.open("b");
  Run run(hosts.job("a,b", {"--nnodes=1:2"}, {"echo", "ran"}));
  REQUIRE(run.wait_for_err("waiting for host a to answer (--last-call)\n"));
  check_interrupt(run);
}

TEST_CASE("Signals that do not end a job do not end its start") {
  const GatedHosts hosts;
  hosts.open("b");
  Run run(hosts.job("a,b", {"--signals-to-handle=TERM"}, {"echo", "ran"}));
  REQUIRE(wait_until([&] { return waiting(run).size() == 1; }));
  for (const int signal : {SIGWINCH, SIGUSR1, SIGUSR2, SIGCONT, SIGHUP, SIGRTMIN + 1, SIGRTMAX}) run.signal(signal);
  hosts.open("a");
  const auto outcome = run.wait();
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(count(outcome.out, "ran\n") == 2);
  CHECK(run.all_gone());
}

TEST_CASE("Hosts that are reached while ddrun is suspended start when it goes on") {
  const GatedHosts hosts;
  hosts.open("b");
  Run run(hosts.job("a,b", {}, {"echo", "ran"}));
  REQUIRE(wait_until([&] { return waiting(run).size() == 1; }));
  for (int time = 0; time < 2; ++time) {
    run.signal(SIGTSTP);
    REQUIRE(wait_until([&] { return is_stopped(run.pid()); }));
    if (time == 0) run.signal(SIGCONT);
    else hosts.open("a");
    if (time == 0) REQUIRE(wait_until([&] { return !is_stopped(run.pid()); }));
  }
  REQUIRE(wait_until([&] { return waiting(run).size() == 2; }));
  CHECK(run.out().empty());
  run.signal(SIGCONT);
  const auto outcome = run.wait();
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(count(outcome.out, "ran\n") == 2);
  CHECK(run.all_gone());
}

TEST_CASE("A signal that ends the job ends its start, with its status") {
  for (const char* reached : {"a", "b"}) {
    CAPTURE(reached);
    const GatedHosts hosts;
    hosts.open(reached);
    Run run(hosts.job("a,b", {}, {"true"}));
    REQUIRE(wait_until([&] { return !waiting(run).empty(); }));
    check_interrupt(run);
  }
}

TEST_CASE("A host on which ddrun is ended before the start is named") {
  const GatedHosts hosts;
  hosts.open("b");
  Run run(hosts.job("a,b", {}, {"true"}));
  REQUIRE(wait_until([&] { return waiting(run).size() == 1; }));
  for (const pid_t pid : waiting(run)) run.signal(pid, SIGKILL);
  const auto outcome = run.wait();
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 128 + SIGKILL);
  CHECK(has(outcome.err, "ddrun: error: ddrun was ended on host b before the job began (status 137); "));
  CHECK(count(outcome.err, "error:") == 1);
  CHECK(run.all_gone());
}

TEST_CASE("A host that cannot run its part ends a job that needs it") {
  const GatedHosts hosts;
  hosts.open("a");
  hosts.open("b");
  const auto outcome = finish(hosts.job("a,b", {}, {"only-there"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 127);
  CHECK(has(outcome.err, "ddrun on b: error: only-there: not found in PATH"));
  CHECK(count(outcome.err, "error:") == 1);
}
