// The coordinator is lost, or leaves, and the job goes on under another one: a lease says which.

#include <signal.h>

#include <nlohmann/json.hpp>

#include "agents.hpp"
#include "ddrun/test/files.hpp"
#include "ddrun/test/held_thread.hpp"

using namespace ddrun::test;

namespace {

/// Agents whose coordinator is where a file says.
class LeasedAgents {
 public:
  explicit LeasedAgents(Words common, const std::string& ttl = "2")
      : file_(directory_.file("lease")), agents_(with_lease(std::move(common), ttl), std::nullopt) {}

  Run& start(const Words& verbs, const Words& own = {}) {
    runs_.push_back(&agents_.start(own, verbs));
    return *runs_.back();
  }
  /// So many agents, each with a worker that has said that it is up.
  void start_all(std::size_t count, const Words& verbs) {
    for (std::size_t i = 0; i < count; ++i) start(verbs);
    for (Run* run : runs_) REQUIRE(run->wait_for_out("up"));
  }
  Run& operator[](std::size_t agent) { return *runs_.at(agent); }
  [[nodiscard]] std::size_t size() const { return runs_.size(); }
  std::vector<Outcome> finish() { return agents_.finish(); }
  [[nodiscard]] std::string file(const std::string& name) const { return directory_.file(name); }

  /// Nothing where there is no file yet.
  [[nodiscard]] nlohmann::json state() const {
    const auto json = nlohmann::json::parse(read_file(file_), nullptr, false);
    return json.is_object() ? json : nlohmann::json::object();
  }
  [[nodiscard]] int term() const { return state().value("term", 0); }
  /// The agent that leads, as an index.
  [[nodiscard]] std::size_t leader() const {
    const pid_t pid = state().value("agent", -1);
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      if (Agents::agent_of(*runs_[i]) == pid) return i;
    }
    FAIL("no agent leads: " << state().dump());
    return 0;
  }
  /// The lease's program of that agent.
  [[nodiscard]] pid_t program(std::size_t agent) const {
    const pid_t parent = Agents::agent_of(*runs_.at(agent));
    for (const pid_t pid : descendants_of(parent)) {
      if (read_file("/proc/" + std::to_string(pid) + "/comm").rfind("python3", 0) == 0) return pid;
    }
    FAIL("no program for the lease runs below " << parent);
    return -1;
  }
  /// That another agent leads in that term.
  [[nodiscard]] bool was_told_of(std::size_t agent, int term) const {
    return read_file(file_ + ".told." + std::to_string(Agents::agent_of(*runs_.at(agent)))) == std::to_string(term);
  }
  void engine_goes() const { write_file(file_ + ".away", ""); }

 private:
  Words with_lease(Words words, const std::string& ttl) {
    words.insert(words.end(), {"--rdzv-lease=python3 " DDRUN_TEST_FILE_LEASE " " + file_, "--rdzv-id=leased",
                               "--lease-ttl=" + ttl, "--heartbeat-interval=0.1", "--heartbeat-misses=10"});
    return words;
  }

  TemporaryDirectory directory_;
  std::string file_;
  Agents agents_;
  std::vector<Run*> runs_;
};

/// As the lease's program counts.
double monotonic_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

}  // namespace

TEST_CASE("The guard or the sweeper of the coordinator's agent is killed, and the job goes on under another one") {
  const bool guard = GENERATE(true, false);
  CAPTURE(guard);
  LeasedAgents agents({"--nnodes=2:3", "--max-restarts=1", "--shutdown-timeout=1"}, "300");
  const std::string end = agents.file("end");
  agents.start_all(3, until(end));
  const std::size_t first = agents.leader();
  const std::size_t other = first == 0 ? 1 : 0;
  const pid_t pid = guard ? agents[first].pid() : descendants_of(agents[first].pid()).at(0);
  REQUIRE(agents[first].signal(pid, SIGKILL));
  REQUIRE(agents[other].wait_for_out("TORCHELASTIC_RESTART_COUNT=1"));
  write_file(end, "");
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  for (std::size_t i = 0; i < outcomes.size(); ++i) CHECK((outcomes[i].code() == 0) == (i != first));
}

TEST_CASE("The coordinator's agent waits for a disk as the job ends, and the others hear how all the same") {
  const TemporaryDirectory directory;
  const std::string events = directory.file("events");
  LeasedAgents agents({"--nnodes=3", "--events=" + events}, "300");
  const auto end = [&](std::size_t agent) { return agents.file("end" + std::to_string(agent)); };
  for (std::size_t i = 0; i < 3; ++i) agents.start(until(end(i)));
  for (std::size_t i = 0; i < 3; ++i) REQUIRE(agents[i].wait_for_out("up"));
  const std::size_t first = agents.leader();
  write_file(end(first), "");
  REQUIRE(wait_until([&] { return has(read_file(events), R"("event":"succeeded")"); }));
  {
    const HeldThread disk(Agents::agent_of(agents[first]));
    for (std::size_t i = 0; i < 3; ++i) write_file(end(i), "");
    for (std::size_t i = 0; i < 3; ++i) {
      if (i != first) CHECK(agents[i].wait().code() == 0);
    }
  }
  for (const auto& outcome : agents.finish()) CHECK(outcome.code() == 0);
}

TEST_CASE(
    "All of the coordinator's machine is killed at once: its lease is taken from it, and others need not wait for it") {
  // Longer than any wait here.
  LeasedAgents agents({"--nnodes=2:3", "--max-restarts=2", "--last-call=20"}, "600");
  const auto verbs = until(agents.file("go"));
  agents.start_all(3, verbs);
  const std::size_t first = agents.leader();
  const int term = agents.term();
  Agents::kill_all_of(agents[first]);
  for (std::size_t i = 0; i < agents.size(); ++i) {
    if (i != first) REQUIRE(agents[i].wait_for_out("DDRUN_ROUND=2"));
  }
  CHECK(agents.term() > term);
  write_file(agents.file("go"), "");
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  for (std::size_t i = 0; i < agents.size(); ++i) {
    if (i != first) CHECK(outcomes[i].code() == 0);
  }
}

TEST_CASE("A machine that may go on alone does not take the lease from another: that runs out") {
  LeasedAgents agents({"--nnodes=1:2", "--max-restarts=2", "--last-call=5"}, "4");
  const auto verbs = until(agents.file("go"));
  agents.start_all(2, verbs);
  const std::size_t first = agents.leader(), other = 1 - first;
  const double until = agents.state().value("until", 0.0);
  Agents::kill_all_of(agents[first]);
  REQUIRE(agents[other].wait_for_out("DDRUN_ROUND=2"));
  CHECK(monotonic_seconds() >= until);
  write_file(agents.file("go"), "");
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  CHECK(outcomes[other].code() == 0);
}

TEST_CASE("A coordinator that falls silent is followed by another one once its lease is over, and hears of it") {
  LeasedAgents agents({"--nnodes=2:3", "--max-restarts=2", "--last-call=1"});
  const auto verbs = until(agents.file("go"));
  agents.start_all(3, verbs);
  const std::size_t first = agents.leader();
  const pid_t stopped = Agents::agent_of(agents[first]);
  REQUIRE(agents[first].signal(stopped, SIGSTOP));
  for (std::size_t i = 0; i < agents.size(); ++i) {
    if (i != first) REQUIRE(agents[i].wait_for_out("DDRUN_ROUND=2"));
  }
  // It comes back as a newcomer, and all run once more.
  REQUIRE(agents[first].signal(stopped, SIGCONT));
  for (std::size_t i = 0; i < agents.size(); ++i) REQUIRE(agents[i].wait_for_out("DDRUN_ROUND=3"));
  write_file(agents.file("go"), "");
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  for (const auto& outcome : outcomes) CHECK(outcome.code() == 0);
  CHECK(count(outcomes[first].out, "DDRUN_ROUND=2\n") == 0);
}

TEST_CASE("Who leads while its workers are still being stopped, and loses the lease, goes on under the next one") {
  LeasedAgents agents({"--nnodes=2", "--max-restarts=3", "--shutdown-timeout=60", "--join-timeout=30",
                       "--coordinator-timeout=8", "--last-call=20"},
                      "3");
  const Words verbs = {"ignore", "TERM", "env", "DDRUN_ROUND", "print", "up", "await", agents.file("go")};
  agents.start_all(2, verbs);
  const std::size_t first = agents.leader(), other = 1 - first;
  REQUIRE(agents[first].signal(Agents::agent_of(agents[first]), SIGKILL));
  REQUIRE(wait_until([&] {
    const auto state = agents.state();
    return state.value("agent", -1) == Agents::agent_of(agents[other]) && state.value("address", "%") != "%";
  }));
  const int term = agents.term();
  // Its lease runs out, and a newcomer takes it.
  REQUIRE(agents[other].signal(agents.program(other), SIGSTOP));
  const double over = agents.state().value("until", 0.0);
  REQUIRE(wait_until([&] { return monotonic_seconds() > over; }));
  agents.start(verbs);
  REQUIRE(wait_until([&] { return agents.term() > term && !agents.state().value("holder", "").empty(); }));
  CHECK(agents.leader() == 2);
  REQUIRE(wait_until([&] { return agents.was_told_of(other, agents.term()); }));
  write_file(agents.file("go"), "");
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  for (const std::size_t i : {other, std::size_t{2}}) {
    CHECK(outcomes[i].code() == 0);
    CHECK(has(outcomes[i].out, "DDRUN_ROUND=2"));
  }
}

TEST_CASE("A job that has ended is not run once more under its name, and says so") {
  LeasedAgents agents({"--nnodes=2"});
  agents.start({"exit", "3"});
  agents.start({"exit", "3"});
  auto outcomes = agents.finish();
  INFO(shown(outcomes));
  for (const auto& outcome : outcomes) CHECK(outcome.code() == 3);
  agents.start({"print", "ran"});
  outcomes = agents.finish();
  INFO(shown(outcomes));
  CHECK(outcomes[2].code() == 125);
  CHECK(outcomes[2].out.empty());
  CHECK(has(outcomes[2].err, "the job leased has ended already: "));
  CHECK(has(outcomes[2].err, "give it another --rdzv-id"));
}

TEST_CASE("Without anything that says who leads a job does not begin, and says why") {
  LeasedAgents agents({"--nnodes=2", "--join-timeout=5"});  // the lease's program has to start within it
  agents.engine_goes();
  agents.start({"print", "ran"});
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  CHECK(outcomes[0].code() == 125);
  CHECK(has(outcomes[0].err, "no machine has taken the lead of the job in time: the engine is away"));
}
