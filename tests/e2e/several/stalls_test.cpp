// Agents that are well, only slow or silent for a while: none of them is given up too early, and one that was comes
// back.

#include <signal.h>
#include <sys/stat.h>

#include <optional>

#include "agents.hpp"
#include "ddrun/test/files.hpp"
#include "ddrun/test/held_thread.hpp"

using namespace ddrun::test;
using namespace std::chrono_literals;

namespace {

/// A second of silence is too long, and the others do not wait for the workers of who was silent.
const Words impatient{"--heartbeat-interval=0.1", "--heartbeat-misses=10", "--fence=0"};

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// Lets time pass in which something else must not happen.
void let_pass(std::chrono::milliseconds time) {
  for (const auto until = std::chrono::steady_clock::now() + time; std::chrono::steady_clock::now() < until;) {
    ::usleep(10'000);
  }
}

}  // namespace

TEST_CASE("An agent whose main thread waits for a disk is not lost, the coordinator's own is not either") {
  const std::size_t held = GENERATE(0U, 1U);
  CAPTURE(held);
  const TemporaryDirectory directory;
  const std::string end = directory.file("end");
  Agents agents(with({"--nnodes=2", "--max-restarts=3"}, impatient));
  start_two(agents, {"env", "TORCHELASTIC_RESTART_COUNT", "print", "up", "await", end});
  {
    const HeldThread disk(Agents::agent_of(agents[held]));
    let_pass(3s);  // three times as long as silence would be borne
  }
  write_file(end, "");
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  for (const auto& outcome : outcomes) {
    CHECK(outcome.code() == 0);
    CHECK(count(outcome.out, "TORCHELASTIC_RESTART_COUNT") == 1);
    CHECK_FALSE(has(outcome.err, "lost"));
  }
}

TEST_CASE("A disk that takes nothing for a while is no lost node, whatever file lies on it") {
  needs_preload();
  const TemporaryDirectory directory;
  const std::string end = directory.file("end");
  const std::string slow = directory.file("slow/");
  REQUIRE(::mkdir(slow.c_str(), 0700) == 0);
  // Only the agent with the coordinator writes events and the report.
  using Kind = std::pair<std::string, std::size_t>;
  const auto [kind, held] =
      GENERATE(values<Kind>({{"logs", 0}, {"logs", 1}, {"events", 0}, {"report", 0}, {"stdout", 0}, {"stdout", 1}}));
  const std::map<std::string, Words> options_of{{"logs", {"--log-dir=" + slow, "--tee=3", "--log-rotate=1M"}},
                                                {"events", {"--events=" + slow + "events"}},
                                                {"report", {"--report=" + slow + "report"}},
                                                {"stdout", {}}};
  CAPTURE(kind, held);
  Agents agents(with({"--nnodes=2", "--max-restarts=3"}, impatient));
  const std::string back = directory.file("back");
  const auto is_held = [&] { return ::access((slow + ".held").c_str(), F_OK) == 0; };
  for (const std::size_t agent : {0U, 1U}) {
    Words options = with({"--node-rank=" + std::to_string(agent)}, agent == held ? options_of.at(kind) : Words{});
    std::map<std::string, std::string> variables;
    if (agent == held) {
      variables = {
          {"LD_PRELOAD", DDRUN_TEST_HELD_WRITES}, {"DDRUN_TEST_HELD_PATH", slow}, {"DDRUN_TEST_HELD_UNTIL", back}};
    }
    const bool to_file = agent == held && kind == "stdout";
    agents.start(options, {"env", "TORCHELASTIC_RESTART_COUNT", "print", "up", "await", end}, job_secret, variables,
                 to_file ? slow + "out" : "");
    if (agent != 0) continue;
    // It runs the coordinator, and has said so if it can.
    REQUIRE(wait_until([&] { return has(agents[0].err(), "waiting for 1 more node") || is_held(); }));
  }
  const bool at_the_end = kind == "report";
  if (at_the_end) write_file(end, "");
  const bool begun = wait_until(is_held);
  INFO(agents[0].out() << agents[0].err() << agents[1].out() << agents[1].err());
  REQUIRE(begun);
  let_pass(3s);
  write_file(back, "");
  if (!at_the_end) write_file(end, "");
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  for (const auto& outcome : outcomes) {
    CHECK(outcome.code() == 0);
    CHECK(count(outcome.out, "TORCHELASTIC_RESTART_COUNT=1") == 0);
    CHECK_FALSE(has(outcome.err, "lost"));
  }
}

TEST_CASE("A signal that crosses the beginning of a round ends the job at once, and with its status") {
  Agents agents({"--nnodes=2", "--shutdown-timeout=1"});
  Run& first = agents.start({"--node-rank=0"}, {"print", "up", "pause"});
  REQUIRE(first.wait_for_err("waiting for 1 more node"));
  {
    // START, or OPEN before it, waits for its main thread, and so does the signal.
    const HeldThread disk(Agents::agent_of(first));
    Run& second = agents.start({"--node-rank=1"}, {"print", "up", "pause"});
    (void)second.wait_for_out("up", 1s);
    first.signal(SIGINT);
  }
  // The bound of a stop that is not answered is longer than is waited for here.
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  for (const auto& outcome : outcomes) {
    CHECK((outcome.code() == 130 || outcome.code() == -SIGINT));
    CHECK_FALSE(has(outcome.err, "were not stopped"));
  }
}

TEST_CASE("Workers of an agent that loses its coordinator while it waits for a disk end beside it") {
  Agents agents({"--nnodes=2", "--shutdown-timeout=1"});
  start_two(agents, {"ignore", "TERM", "print", "up", "pause"});
  const pid_t agent = Agents::agent_of(agents[1]);
  REQUIRE_FALSE(descendants_of(agent).empty());
  {
    const HeldThread disk(agent);
    Agents::kill_all_of(agents[0]);
    CHECK(wait_until([&] { return descendants_of(agent).empty(); }));
  }
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  CHECK(outcomes[1].code() == 125);
  CHECK_FALSE(has(outcomes[1].err, "killed by SIGKILL"));
  CHECK(has(outcomes[1].err, "rank 1 killed by ddrun (SIGKILL)"));
}

TEST_CASE("An agent that was given up for its silence comes back, and the job goes on with it") {
  const TemporaryDirectory directory;
  const std::string end = directory.file("end");
  const bool elastic = GENERATE(false, true);
  CAPTURE(elastic);
  Agents agents(with({elastic ? "--nnodes=1:2" : "--nnodes=2", "--last-call=1", "--max-restarts=1"}, impatient));
  start_two(agents, {"env", "WORLD_SIZE", "print", "up", "await", end});
  const pid_t agent = Agents::agent_of(agents[1]);
  REQUIRE(agents[1].signal(agent, SIGSTOP));
  REQUIRE(agents[0].wait_for_err("was lost: nothing was heard from it for 1"));
  if (elastic) REQUIRE(agents[0].wait_for_out("WORLD_SIZE=1"));
  REQUIRE(agents[1].signal(agent, SIGCONT));
  REQUIRE(agents[1].wait_for_err("; stopping the workers, to join again"));
  REQUIRE(wait_until([&] { return count(agents[1].out(), "WORLD_SIZE=2") == 2; }));
  write_file(end, "");
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  for (const auto& outcome : outcomes) {
    CHECK(outcome.code() == 0);
    CHECK(count(outcome.out, "WORLD_SIZE=2") == 2);
  }
}

TEST_CASE("Workers of an agent that stands still end before the next round, and run in one when it goes on") {
  const TemporaryDirectory directory;
  const std::string end = directory.file("end");
  const bool with_cgroup = GENERATE(true, false);
  CAPTURE(with_cgroup);
  // A sweeper that looks later than a heartbeat, on a busy machine, looks twice.
  Agents agents({"--nnodes=1:2", "--last-call=1", "--max-restarts=1", "--shutdown-timeout=1",
                 "--heartbeat-interval=0.7", "--heartbeat-misses=2"});
  const Words verbs{"ignore", "TERM", "env", "DDRUN_ROUND", "print", "up", "await", end};
  std::map<std::string, std::string> variables;
  if (!with_cgroup) variables["DDRUN_NO_CGROUP"] = "1";
  agents.start({"--node-rank=0"}, verbs, job_secret, variables);
  agents.start({"--node-rank=1", "--report=" + directory.file("report")}, verbs, job_secret, variables);
  for (const std::size_t i : {0U, 1U}) REQUIRE(agents[i].wait_for_out("up"));
  const pid_t agent = Agents::agent_of(agents[1]);
  const auto workers = descendants_of(agent);
  REQUIRE(workers.size() == 1);
  REQUIRE(agents[1].signal(agent, SIGSTOP));
  // They are zombies of the stopped agent. (When exactly they end the simulations show.)
  CHECK(wait_until([&] { return descendants_of(agent).empty(); }));
  REQUIRE(agents[0].wait_for_out("DDRUN_ROUND=2"));
  REQUIRE(agents[1].signal(agent, SIGCONT));
  REQUIRE(agents[1].wait_for_err("killed by ddrun: this agent had stood still for "));
  REQUIRE(agents[1].wait_for_out("DDRUN_ROUND=3"));
  write_file(end, "");
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  for (const auto& outcome : outcomes) CHECK(outcome.code() == 0);
  CHECK_FALSE(has(outcomes[0].err + outcomes[1].err, "killed from outside ddrun"));
  const std::string report = read_file(directory.file("report"));
  CHECK(has(report, "\"stopped_by_ddrun\": true"));
}

TEST_CASE("An agent takes the place of one that is silent as soon as that is lost") {
  const TemporaryDirectory directory;
  const std::string end = directory.file("end");
  Agents agents(with({"--nnodes=2", "--max-restarts=1"}, impatient));
  const Words verbs{"print", "up", "await", end};
  start_two(agents, verbs);
  const pid_t agent = Agents::agent_of(agents[1]);
  REQUIRE(agents[1].signal(agent, SIGSTOP));
  Run& successor = agents.start({"--node-rank=1"}, verbs);
  const bool let_in = successor.wait_for_out("up");
  INFO(agents[0].err() << successor.err());
  REQUIRE(let_in);
  // The place is taken for who comes now, by one that lives.
  const auto another = agents.start({"--node-rank=1"}, verbs).wait();
  CHECK(another.code() == 125);
  CHECK(has(another.err, "node rank 1 is taken by "));
  write_file(end, "");
  CHECK(agents[0].wait().code() == 0);
  CHECK(successor.wait().code() == 0);
  REQUIRE(agents[1].signal(agent, SIGCONT));
  (void)agents.finish();
}

TEST_CASE("An agent finds a coordinator again that was silent for a while") {
  const TemporaryDirectory directory;
  const std::string end = directory.file("end");
  Agents agents(with({"--nnodes=2", "--max-restarts=1"}, impatient));
  start_two(agents, {"env", "TORCHELASTIC_RESTART_COUNT", "print", "up", "await", end});
  const pid_t agent = Agents::agent_of(agents[0]);
  REQUIRE(agents[0].signal(agent, SIGSTOP));
  REQUIRE(agents[1].wait_for_err("nothing was heard from the coordinator on "));
  REQUIRE(agents[0].signal(agent, SIGCONT));
  const bool found = agents[1].wait_for_out("TORCHELASTIC_RESTART_COUNT=1");
  INFO(agents[0].err() << agents[1].err());
  REQUIRE(found);
  write_file(end, "");
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  for (const auto& outcome : outcomes) CHECK(outcome.code() == 0);
}

TEST_CASE("A coordinator that stood still begins no round while workers run of an agent that took it for lost") {
  const TemporaryDirectory directory;
  const std::string end = directory.file("end");
  Agents agents({"--nnodes=1:2", "--last-call=1", "--max-restarts=2", "--shutdown-timeout=4",
                 "--heartbeat-interval=0.1", "--heartbeat-misses=10"});
  const Words verbs = {"env", "DDRUN_ROUND", "print", "up", "await", end};
  agents.start({"--node-rank=0"}, verbs);
  agents.start({"--node-rank=1"}, with({"ignore", "TERM"}, verbs));
  for (const std::size_t i : {0U, 1U}) REQUIRE(agents[i].wait_for_out("up"));
  const pid_t worker = descendants_of(Agents::agent_of(agents[1])).back();
  REQUIRE(has(read_file("/proc/" + std::to_string(worker) + "/cmdline"), "await"));
  const pid_t agent = Agents::agent_of(agents[0]);
  REQUIRE(agents[0].signal(agent, SIGSTOP));
  REQUIRE(agents[1].wait_for_err("nothing was heard from the coordinator on "));
  REQUIRE(agents[0].signal(agent, SIGCONT));
  const bool next = agents[0].wait_for_out("DDRUN_ROUND=2");
  const bool still_runs = ::kill(worker, 0) == 0;
  INFO(agents[0].err() << agents[1].err());
  REQUIRE(next);
  CHECK_FALSE(still_runs);
  write_file(end, "");
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  for (const auto& outcome : outcomes) CHECK(outcome.code() == 0);
}

TEST_CASE("Workers that are being stopped are killed sooner once their coordinator is out of sight") {
  const TemporaryDirectory directory;
  const std::string fail = directory.file("fail");
  Agents agents({"--nnodes=2", "--max-restarts=1", "--shutdown-timeout=60", "--heartbeat-interval=0.1",
                 "--heartbeat-misses=10", "--coordinator-timeout=1"});
  agents.start({"--node-rank=0"}, {"print", "up", "await", fail, "exit", "1"});
  agents.start({"--node-rank=1"}, {"ignore", "TERM", "print", "up", "forever"});
  for (const std::size_t i : {0U, 1U}) REQUIRE(agents[i].wait_for_out("up"));
  write_file(fail, "");
  REQUIRE(agents[1].wait_for_err("restarting all workers"));
  const pid_t coordinator = Agents::agent_of(agents[0]);
  REQUIRE(agents[0].signal(coordinator, SIGSTOP));
  const bool killed = agents[1].wait_for_err("not ended within ");
  const auto second = killed ? agents[1].wait() : Outcome{};
  REQUIRE(agents[0].signal(coordinator, SIGCONT));
  agents[0].signal(SIGINT);
  agents[0].wait();
  INFO(second.err);
  REQUIRE(killed);
  CHECK(second.code() == 125);
  CHECK(second.err.find("not ended within 60") == std::string::npos);
}

TEST_CASE("An agent that is told to end while it comes back ends with that signal") {
  Agents agents(with({"--nnodes=2", "--shutdown-timeout=2"}, impatient));
  start_two(agents, {"ignore", "TERM", "print", "up", "pause"});
  REQUIRE(agents[0].signal(Agents::agent_of(agents[0]), SIGSTOP));
  REQUIRE(agents[1].wait_for_err("nothing was heard from the coordinator on "));
  agents[1].signal(SIGINT);
  const auto second = agents[1].wait();
  INFO(second.err);
  CHECK(second.code() == -SIGINT);
  CHECK(agents[1].all_gone());
  REQUIRE(agents[0].signal(Agents::agent_of(agents[0]), SIGCONT));
  CHECK(agents[0].wait().code() == 125);
  CHECK(agents[0].all_gone());
}
