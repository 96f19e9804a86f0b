// Machines that vote on who runs the coordinator, --rdzv-endpoint=a,b,c: here agents of one machine with a port each.

#include <signal.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "agents.hpp"
#include "ddrun/test/files.hpp"

using namespace ddrun::test;

namespace {

bool runs_coordinator(pid_t pid) {
  std::error_code ignored;
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", ignored)) {
    if (read_file(task.path().string() + "/comm") == "ddrun-coord\n") return true;
  }
  return false;
}

class VotingAgents {
 public:
  explicit VotingAgents(Words common) : agents_(with_votes(std::move(common)), std::nullopt) {}

  Run& start(const Words& verbs, const Words& own = {}, const std::string& secret = job_secret) {
    runs_.push_back(&agents_.start(own, verbs, secret));
    return *runs_.back();
  }
  void start_all(std::size_t count, const Words& verbs) {
    for (std::size_t i = 0; i < count; ++i) start(verbs);
    for (Run* run : runs_) REQUIRE(run->wait_for_out("up"));
  }
  Run& operator[](std::size_t agent) { return *runs_.at(agent); }
  [[nodiscard]] std::size_t size() const { return runs_.size(); }
  std::vector<Outcome> finish() { return agents_.finish(); }
  [[nodiscard]] std::string file(const std::string& name) const { return directory_.file(name); }
  [[nodiscard]] const std::string& endpoints() const { return endpoints_; }

  [[nodiscard]] std::size_t leader() const {
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      if (runs_coordinator(Agents::agent_of(*runs_[i]))) return i;
    }
    FAIL("no agent leads");
    return 0;
  }
  void kill_all_of(std::size_t agent) { Agents::kill_all_of(*runs_[agent]); }

 private:
  Words with_votes(Words words) {
    for (int i = 0; i < 3; ++i) {
      endpoints_ += (i == 0 ? "" : ",") + ("127.0.0.1:" + std::to_string(free_port()));
    }
    words.insert(words.end(), {"--rdzv-endpoint=" + endpoints_, "--lease-ttl=2", "--heartbeat-interval=0.1",
                               "--heartbeat-misses=10"});
    return words;
  }

  TemporaryDirectory directory_;
  std::string endpoints_;
  Agents agents_;
  std::vector<Run*> runs_;
};

}  // namespace

TEST_CASE("Machines that vote: the coordinator's machine is killed, and the others go on with the next one") {
  VotingAgents agents({"--nnodes=3:4", "--max-restarts=2", "--last-call=20"});
  agents.start_all(4, until(agents.file("go")));
  const std::size_t first = agents.leader();
  agents.kill_all_of(first);
  for (std::size_t i = 0; i < agents.size(); ++i) {
    if (i != first) REQUIRE(agents[i].wait_for_out("DDRUN_ROUND=2"));
  }
  CHECK(agents.leader() != first);
  write_file(agents.file("go"), "");
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  for (std::size_t i = 0; i < agents.size(); ++i) {
    if (i == first) continue;
    CHECK(outcomes[i].code() == 0);
    CHECK(count(outcomes[i].out, "TORCHELASTIC_RESTART_COUNT=1\n") == 1);
  }
}

TEST_CASE("Machines that vote: one that is told to end goes without a restart, and one started anew votes again") {
  VotingAgents agents({"--nnodes=2:3", "--last-call=1"});
  const auto verbs = until(agents.file("go"));
  agents.start_all(3, verbs);
  std::size_t round = 1;
  // Each of the three machines, one after the other: those that remain would never be enough without the new ones.
  for (std::size_t machine = 0; machine < 3; ++machine) {
    agents[machine].signal(SIGTERM);
    agents[machine].wait();
    const auto all_begin = [&] {
      const std::string said = "DDRUN_ROUND=" + std::to_string(++round) + "\n";
      for (std::size_t i = machine + 1; i < agents.size(); ++i) REQUIRE(agents[i].wait_for_out(said));
    };
    all_begin();
    agents.start(verbs);
    all_begin();
  }
  write_file(agents.file("go"), "");
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  for (std::size_t i = 3; i < agents.size(); ++i) {
    CHECK(outcomes[i].code() == 0);
    CHECK(count(outcomes[i].out, "TORCHELASTIC_RESTART_COUNT=0\n") > 0);
    CHECK_FALSE(has(outcomes[i].out, "TORCHELASTIC_RESTART_COUNT=1\n"));
  }
}

TEST_CASE("Machines that vote: a coordinator that falls silent is followed by another one, and hears of it") {
  VotingAgents agents({"--nnodes=2:3", "--max-restarts=2", "--last-call=1"});
  agents.start_all(3, until(agents.file("go")));
  const std::size_t first = agents.leader();
  const pid_t stopped = Agents::agent_of(agents[first]);
  REQUIRE(agents[first].signal(stopped, SIGSTOP));
  for (std::size_t i = 0; i < agents.size(); ++i) {
    if (i != first) REQUIRE(agents[i].wait_for_out("DDRUN_ROUND=2"));
  }
  REQUIRE(agents[first].signal(stopped, SIGCONT));
  for (std::size_t i = 0; i < agents.size(); ++i) REQUIRE(agents[i].wait_for_out("DDRUN_ROUND=3"));
  write_file(agents.file("go"), "");
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  for (const auto& outcome : outcomes) CHECK(outcome.code() == 0);
  CHECK(count(outcomes[first].out, "DDRUN_ROUND=2\n") == 0);
}

TEST_CASE("Machines that vote: a job begins without one of them that never comes") {
  VotingAgents agents({"--nnodes=2:3", "--last-call=0"});
  agents.start_all(2, {"print", "up"});
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  for (const auto& outcome : outcomes) CHECK(outcome.code() == 0);
}

TEST_CASE("Machines that vote: with more than half of them lost no round begins, and the job ends in time") {
  VotingAgents agents({"--nnodes=2:3", "--max-restarts=2", "--last-call=20", "--coordinator-timeout=3"});
  agents.start_all(3, until(agents.file("never")));
  const std::size_t first = agents.leader();
  for (std::size_t i = 0; i < 3; ++i) {
    if (i != first) agents.kill_all_of(i);
  }
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  CHECK(outcomes[first].code() == 125);
  CHECK(has(outcomes[first].err,
            "only 1 of the 3 machines of --rdzv-endpoint answer, and 2 are needed to say who leads"));
  CHECK(count(outcomes[first].out, "up\n") == 1);
}

TEST_CASE("Machines that vote: one with another secret, or another time to live, is told what is wrong") {
  VotingAgents agents({"--nnodes=2:3", "--last-call=0"});
  const auto verbs = until(agents.file("go"));
  agents.start_all(3, verbs);
  Run& other = agents.start(verbs, {"--join-timeout=30"}, "another secret, and as long as it");
  const auto outcome = other.wait();
  INFO(outcome.err);
  CHECK(outcome.code() == 125);
  CHECK(has(outcome.err, "has another secret"));
  Run& longer = agents.start(verbs, {"--join-timeout=30", "--lease-ttl=7"});
  const auto refused = longer.wait();
  INFO(refused.err);
  CHECK(refused.code() == 125);
  CHECK(has(refused.err, "has a --lease-ttl of 2000 ms, not 7000 ms"));
  write_file(agents.file("go"), "");
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  for (std::size_t i = 0; i < 3; ++i) CHECK(outcomes[i].code() == 0);
}
