// --hosts: --report and --events are files of the machine where the user called ddrun.
#include <csignal>
#include <nlohmann/json.hpp>
#include <tuple>

#include "ssh_hosts.hpp"

using namespace ddrun::test;

namespace {

/// Two hosts on which no file may get a byte: whatever is in one was written here.
SshHosts& without_files(SshHosts& hosts) {
#ifdef DDRUN_SANITIZED
  skip("where no file may be written a sanitizer's own start-up is killed");
#endif
  hosts.add("a", "ForceCommand ulimit -f 0; eval \"$SSH_ORIGINAL_COMMAND\"");
  hosts.add("b", "ForceCommand ulimit -f 0; eval \"$SSH_ORIGINAL_COMMAND\"");
  return hosts;
}

std::vector<std::string> events_in(const std::string& path) {
  std::vector<std::string> names;
  const std::string text = read_file(path);
  std::size_t at = 0;
  for (std::size_t end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    const auto line = nlohmann::json::parse(text.substr(at, end - at), nullptr, false);
    REQUIRE(line.is_object());
    CHECK(line.contains("time"));
    names.push_back(line.at("event"));
  }
  CHECK(at == text.size());
  return names;
}

}  // namespace

TEST_CASE("Report and events of all hosts are written where ddrun was called") {
  SshHosts made;
  const SshHosts& hosts = without_files(made);
  const TemporaryDirectory here;
  RunOptions options;
  options.directory = here.path();
  const auto outcome =
      finish_on(hosts,
                hosts.job("a,b", {"-n", "2", "--report=report.json", "--report=a.xml", "--events=events", "--chdir=/"},
                          {"rank", "3", "exit", "7"}),
                std::move(options));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 7);
  const auto report = nlohmann::json::parse(read_file(here.file("report.json")), nullptr, false);
  REQUIRE(report.is_object());
  CHECK(report.at("verdict") == "worker_failed");
  CHECK(report.at("exit_code") == 7);
  CHECK(report.at("world_size") == 4);
  const auto& workers = report.at("attempts").at(0).at("workers");
  REQUIRE(workers.size() == 4);
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(workers[static_cast<std::size_t>(rank)].at("rank") == rank);
    CHECK(workers[static_cast<std::size_t>(rank)].at("node_rank") == rank / 2);
  }
  CHECK(has(read_file(here.file("a.xml")), "<testsuite"));
  const auto events = events_in(here.file("events"));
  CHECK(std::count(events.begin(), events.end(), "joined") == 2);
  CHECK(std::count(events.begin(), events.end(), "round") == 1);
  REQUIRE(!events.empty());
  CHECK(events.back() == "verdict");
}

TEST_CASE("One line names the log directory of a job on several hosts") {
  SshHosts hosts;
  const TemporaryDirectory logs;
  const auto outcome = finish_on(hosts, hosts.job("one,two", {"-r", "3", "--log-dir=" + logs.path()}, {"env", "RANK"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(outcome.err.starts_with("ddrun on one: logs: " + std::filesystem::canonical(logs.file("latest")).string() +
                                " on node rank 0; each machine has its own\n"));
  CHECK(count(outcome.err, " logs: ") == 1);
  CHECK(read_file(logs.file("latest/attempt_0/0/stdout.log")) == "RANK=0\n");
  // A temporary directory on each host is named once, too.
  const auto temporary = finish_on(hosts, hosts.job("one,two", {"-r", "3"}, {"env", "RANK"}));
  DDRUN_SHOW(temporary);
  CHECK(count(temporary.err, "ddrun on one: logs: /") == 1);
}

TEST_CASE("Events are at home while the job runs and are appended") {
  SshHosts made;
  const SshHosts& hosts = without_files(made);
  const TemporaryDirectory here;
  const std::string file = here.file("events", "{\"time\":\"before\",\"event\":\"old\"}\n");
  Run run(hosts.job("a", {"--events=" + file, "--report=" + here.file("report")}, {"print", "up", "forever"}));
  REQUIRE(run.wait_for_out("up\n"));
  CHECK(wait_until([&] { return has(read_file(file), "\"event\":\"started\""); }));
  CHECK(read_file(here.file("report")).empty());
  run.signal(SIGTERM);
  const auto outcome = run.wait();
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == -SIGTERM);
  CHECK(events_in(file).front() == "old");
  CHECK(events_in(file).back() == "verdict");
  CHECK(has(read_file(here.file("report")), "\"verdict\": \"stopped_by_signal\""));
  CHECK(run.all_gone());
  CHECK(hosts.all_gone());
}

TEST_CASE("A full disk at home costs events and is told once") {
  const SshHosts hosts;
  const auto outcome = finish_on(hosts, hosts.shell("one,two", {"--events=/dev/full"}, "echo done"));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(count(outcome.out, "done\n") == 2);
  CHECK(count(outcome.err, "--events: ") == 1);
  CHECK(has(outcome.err, " bytes were lost (No space left on device)"));
}

TEST_CASE("A report that cannot be written at home is an error") {
  const SshHosts hosts;
  const auto outcome = finish_on(hosts, hosts.shell("one", {"--report=/dev/full"}, "echo done"));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 125);
  CHECK(outcome.out == "done\n");
  CHECK(has(outcome.err, "ddrun: error: --report: cannot write /dev/full: No space left on device\n"));
}

TEST_CASE("Files that cannot be written are refused before any host is reached") {
  const SshHosts hosts;
  const TemporaryDirectory here;
  const std::vector<std::tuple<std::string, std::string, int>> cases{
      {"--events=" + here.path() + "/no/file", "--events: cannot open ", 125},
      {"--report=" + here.path() + "/no/file", "cannot write in ", 125},
      {"--report=" + here.path(), "is a directory", 2},
  };
  for (const auto& [option, message, code] : cases) {
    const auto outcome = finish(hosts.shell("nowhere.invalid", {option}, "echo must not run"));
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() == code);
    CHECK(has(outcome.err, message));
    CHECK_FALSE(has(outcome.err, "nowhere"));
    CHECK_FALSE(std::filesystem::exists(here.path() + "/no"));
  }
}

TEST_CASE("Without the first host there is no report and the old one stays") {
  const SshHosts hosts;
  const TemporaryDirectory here;
  const std::string file = here.file("report", "old");
  Run run(hosts.job("one", {"--report=" + file}, {"print", "up", "forever"}));
  REQUIRE(run.wait_for_out("up\n"));
  for (const pid_t pid : hosts.living()) ::kill(pid, SIGKILL);
  const auto outcome = run.wait();
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 125);
  CHECK(has(outcome.err, "no report is written, as host one has not sent it"));
  CHECK(read_file(file) == "old");
  CHECK(run.all_gone());
  CHECK(hosts.all_gone());
}
