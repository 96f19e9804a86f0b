// Jobs of several agents, all on this machine: who gets which rank, what happens when workers fail and agents come and
// go.

#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "agents.hpp"
#include "ddrun/test/files.hpp"

using namespace ddrun::test;

TEST_CASE("Agents with different numbers of workers make one job") {
  Agents agents({"--nnodes=3", "--label=none"});
  const Words verbs{"env", "RANK",        "env", "WORLD_SIZE",   "env",   "GROUP_WORLD_SIZE",
                    "env", "MASTER_ADDR", "env", "DDRUN_SECRET", "count", "met"};
  for (const char* workers : {"2", "1", "3"}) agents.start({"-n", workers}, verbs);
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  std::string out;
  for (const auto& outcome : outcomes) {
    CHECK(outcome.code() == 0);
    out += outcome.out;
  }
  for (int rank = 0; rank < 6; ++rank) {
    CHECK(count(out, "RANK=" + std::to_string(rank) + "\n") == 1);
    CHECK(count(out, "met=" + std::to_string(rank + 1) + "\n") == 1);  // one store for all of them
  }
  CHECK(count(out, "GROUP_WORLD_SIZE=3\n") == 6);
  CHECK(count(out, "MASTER_ADDR=127.0.0.1\n") == 6);
  CHECK_FALSE(has(out, job_secret));
}

TEST_CASE("A failure anywhere restarts all, with one count and an empty store") {
  Agents agents({"--nnodes=2", "--max-restarts=3", "-n", "2"});
  const Words verbs{"env",     "TORCHELASTIC_RESTART_COUNT",
                    "rank",    "0",
                    "count",   "key",
                    ";",       "attempt",
                    "0",       "rank",
                    "3",       "exit",
                    "5",       ";",
                    "forever", ";",
                    "attempt", "1",
                    "rank",    "0",
                    "signal",  "ABRT",
                    ";",       "forever",
                    ";"};
  agents.start({}, verbs);
  agents.start({}, verbs);
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  std::string out;
  for (const auto& outcome : outcomes) {
    CHECK(outcome.code() == 0);
    CHECK(has(outcome.err, "rank 3 on "));
    CHECK(has(outcome.err, "(restart 2 of 3)"));
    out += outcome.out;
  }
  CHECK(count(out, "TORCHELASTIC_RESTART_COUNT=2\n") == 4);
  CHECK(count(out, "TORCHELASTIC_RESTART_COUNT=3\n") == 0);
  CHECK(count(out, "key=2\n") == 0);
}

TEST_CASE("All machines say once why all start again, and which machines do") {
  Agents agents({"--nnodes=2", "--max-restarts=1", "-n", "1"});
  const Words verbs{"attempt", "0", "rank", "1", "error", "fatal error: no data", "exit", "5", ";", "forever", ";"};
  for (const char* node_rank : {"--node-rank=0", "--node-rank=1"}) agents.start({node_rank}, verbs);
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  for (const auto& outcome : outcomes) {
    CHECK(outcome.code() == 0);
    CHECK(count(outcome.err, " exited with code 5: fatal error: no data; restarting all workers (restart 1 of 1)\n") ==
          1);
    CHECK(count(outcome.err, "starting again") == 0);
    CHECK(count(outcome.err, "ddrun: round ") == 1);
    CHECK(count(outcome.err, "ddrun: round 2: 2 machines (") == 1);
  }
  CHECK(has(outcomes[0].err, "), 2 workers; here rank 0\n"));
  CHECK(has(outcomes[1].err, "), 2 workers; here rank 1\n"));
}

TEST_CASE("The machine on which a worker failed says what came to light after the restart was announced") {
  const TemporaryDirectory directory;
  const std::string failed = directory.file("failed");
  Agents agents({"--nnodes=2", "--max-restarts=1", "-n", "2"});
  const Words verbs{"attempt", "0",
                    "rank",    "3",
                    "error",   "fatal error: no data",
                    "touch",   failed,
                    "forever", ";",
                    "rank",    "2",
                    "await",   failed,
                    "error",   "RuntimeError: Connection closed by peer",
                    "exit",    "5",
                    ";",       "forever",
                    ";"};
  for (const char* node_rank : {"--node-rank=0", "--node-rank=1"}) agents.start({node_rank}, verbs);
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  for (const auto& outcome : outcomes) CHECK(has(outcome.err, " exited with code 5; restarting all workers"));
  CHECK_FALSE(has(outcomes[0].err, "starting again"));
  CHECK(has(outcomes[1].err, "ddrun: starting again after rank 2 (pid "));
  CHECK(has(outcomes[1].err, " (rank 3 failed first: fatal error: no data)\n"));
}

TEST_CASE("Every machine ends with the first failure's status and names it") {
  Agents agents({"--nnodes=2", "-n", "2"});
  const std::string reason = "it is broken " + std::string(200, 'x');
  const Words verbs{"rank", "2", "error", reason, "exit", "41", ";", "pause"};
  agents.start({"--node-rank=0"}, verbs);
  agents.start({"--node-rank=1"}, verbs);
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  for (const auto& outcome : outcomes) {
    CHECK(outcome.code() == 41);
    CHECK(has(outcome.err, "error: rank 2 exited with code 41"));
  }
  // The coordinator's machine has not seen the worker's output: its report quotes it, for a file without a cut.
  CHECK(has(outcomes[0].err, "stderr:  " + reason + "\n"));
}

TEST_CASE("A job goes on without an agent that was killed") {
  Agents agents({"--nnodes=1:2", "--max-restarts=1", "--last-call=20"});
  const Words verbs{"env", "WORLD_SIZE", "env", "TORCHELASTIC_RESTART_COUNT", "attempt", "0", "pause", ";"};
  Run& first = agents.start({}, verbs);
  REQUIRE(wait_until([&] { return Agents::agent_of(first) > 0; }));
  REQUIRE(first.wait_for_err("waiting for the end of the last call; 1 of 1 to 2 is there"));  // it runs the coordinator
  Run& second = agents.start({}, verbs);
  REQUIRE(second.wait_for_out("TORCHELASTIC_RESTART_COUNT=0"));
  REQUIRE(first.wait_for_out("TORCHELASTIC_RESTART_COUNT=0"));
  REQUIRE(second.signal(Agents::agent_of(second), SIGKILL));
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  CHECK(outcomes[0].code() == 0);
  CHECK(has(outcomes[0].err, "ddrun: round 1: 2 machines ("));  // how many come was open
  CHECK(has(outcomes[0].err, "was lost: connection closed; restarting all workers (restart 1 of 1)"));
  CHECK(has(outcomes[0].err, "ddrun: round 2: 1 machine ("));
  CHECK(has(outcomes[0].err, "), 1 worker; here rank 0\n"));
  CHECK(has(outcomes[0].out, "WORLD_SIZE=1\n"));
  CHECK(has(outcomes[0].out, "TORCHELASTIC_RESTART_COUNT=1\n"));
  CHECK(outcomes[1].code() == 125);
}

TEST_CASE("An agent beyond MAX is a spare: used when one is lost, and else ends well") {
  const TemporaryDirectory directory;
  const std::string go = directory.file("several_spare");
  // Without a name another job of the same line is no other job: what has not run anywhere would be a success.
  const bool named = GENERATE(false, true);
  CAPTURE(named);
  Words options{"--nnodes=2", "--max-restarts=1"};
  if (named) options.emplace_back("--rdzv-id=spares");
  Agents agents(options);
  const Words verbs{"env", "RANK", "await", go};
  Run& first = agents.start({}, verbs);
  REQUIRE(first.wait_for_err("waiting for 1 more node; 1 of 2 is there"));
  Run& second = agents.start({}, verbs);
  REQUIRE(second.wait_for_out("RANK="));
  Run& spare = agents.start({}, verbs);
  REQUIRE(spare.wait_for_err("this node is a spare and waits for a place in the job"));
  SECTION("not needed") {
    write_file(go, "");
    const auto outcomes = agents.finish();
    INFO(shown(outcomes));
    for (const std::size_t member : {0U, 1U}) CHECK(outcomes[member].code() == 0);
    CHECK(outcomes[2].code() == (named ? 0 : 125));
    CHECK(has(outcomes[2].err, "this node was not needed: the job has ended well without it"));
    CHECK(has(outcomes[2].err, "nothing has run here; a job with a name (--rdzv-id)") == !named);
    CHECK_FALSE(has(outcomes[2].out, "RANK="));
  }
  SECTION("needed") {
    REQUIRE(second.signal(Agents::agent_of(second), SIGKILL));
    REQUIRE(spare.wait_for_out("RANK=1"));
    write_file(go, "");
    const auto outcomes = agents.finish();
    INFO(shown(outcomes));
    CHECK(outcomes[0].code() == 0);
    CHECK(outcomes[2].code() == 0);
  }
}

TEST_CASE("With --signals-to-all a signal to one agent reaches the workers of all, once") {
  Agents agents({"--nnodes=2", "--signals-to-all"});
  start_two(agents, {"tell", "USR1", "print", "up", "heard", "1", "print", "saved"});
  REQUIRE(agents[1].signal(agents[1].pid(), SIGUSR1));
  for (const auto& outcome : agents.finish()) {
    INFO(outcome.err);
    CHECK(outcome.code() == 0);
    CHECK(count(outcome.out, "got USR1") == 1);
    CHECK(has(outcome.out, "saved"));
  }
}

TEST_CASE("Where the machines share the report's file, it is the one about all of them") {
  for (int repeat = 0; repeat < 3; ++repeat) {
    const TemporaryDirectory directory;
    const std::string report = directory.file("several_report");
    Agents agents({"--nnodes=3", "--report=" + report});
    for (int node = 0; node < 3; ++node) agents.start({"--node-rank=" + std::to_string(node)}, {"exit", "0"});
    const auto outcomes = agents.finish();
    INFO(shown(outcomes));
    const auto json = nlohmann::json::parse(read_file(report));
    REQUIRE(json["attempts"][0]["workers"].size() == 3);
  }
}

TEST_CASE("One machine names the log directory, and links the last run where machines share it") {
  const TemporaryDirectory directory;
  Agents agents({"--nnodes=2", "--max-restarts=1", "--log-dir=" + directory.path(), "-r", "3"});
  // Where the coordinator runs is left to chance: the machine of node rank 0 does it.
  for (const std::string node : {"1", "0"}) {
    agents.start({"--node-rank=" + node},
                 {"env", "GROUP_RANK", "attempt", "0", "rank", "1", "exit", "3", ";", "forever", ";"});
  }
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  CHECK(count(outcomes[0].err, "ddrun: logs: ") == 0);
  CHECK(count(outcomes[1].err, "ddrun: logs: ") == 1);
  const std::string run = std::filesystem::canonical(directory.file("latest"));
  CHECK(has(outcomes[1].err, "ddrun: logs: " + run + " on node rank 0; each machine has its own\n"));
  CHECK(read_file(directory.file("latest/attempt_1/0/stdout.log")) == "GROUP_RANK=0\n");
  // Two directories and the link.
  CHECK(std::distance(std::filesystem::directory_iterator(directory.path()), {}) == 3);
}

TEST_CASE("The report and the events of a job are about all of its machines") {
  const TemporaryDirectory directory;
  const std::string report = directory.file("several_report");
  const std::string events = directory.file("several_events");
  Agents agents({"--nnodes=2", "-n", "2"});
  const Words verbs{"rank", "3", "exit", "7", ";", "pause"};
  agents.start({"--node-rank=0", "--report=" + report, "--events=" + events}, verbs);
  agents.start({"--node-rank=1", "--report=" + report + ".other"}, verbs);
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  const auto json = nlohmann::json::parse(read_file(report));
  CHECK(json["verdict"] == "worker_failed");
  CHECK(json["node_count"] == 2);
  CHECK(json["world_size"] == 4);
  CHECK(json["cause"]["node_rank"] == 1);
  CHECK(json["cause"]["worker"]["rank"] == 3);
  const auto& workers = json["attempts"][0]["workers"];
  REQUIRE(workers.size() == 4);
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(workers[rank]["rank"] == rank);
    CHECK(workers[rank]["node_rank"] == rank / 2);
  }
  std::istringstream lines(read_file(events));
  std::vector<std::string> names;
  for (std::string line; std::getline(lines, line);) {
    const auto event = nlohmann::json::parse(line);
    CHECK(event.contains("time"));
    names.push_back(event["event"]);
  }
  for (const char* name : {"joined", "round", "started", "failed", "ended", "verdict"}) {
    INFO(name);
    CHECK(std::count(names.begin(), names.end(), name) >= 1);
  }
  CHECK(names.back() == "verdict");
}

TEST_CASE("A name that means nobody yet is looked up again, and the machine that it means then runs the coordinator") {
  const TemporaryDirectory directory;
  const std::string known = directory.file("known");
  write_file(directory.file("getent"), "#!/bin/sh\n[ -e " + known + " ] && echo '127.0.0.1 STREAM node0.example'\n");
  REQUIRE(::chmod(directory.file("getent").c_str(), 0700) == 0);
  const std::map<std::string, std::string> variables{
      {"PATH", directory.path() + ":" + std::string(::getenv("PATH") != nullptr ? ::getenv("PATH") : "/bin")}};
  Agents agents({"--nnodes=2"});
  const Words own{"--rdzv-endpoint=node0.example:" + std::to_string(agents.port())};
  Run& first = agents.start(own, {"count", "met"}, job_secret, variables);
  REQUIRE(first.wait_for_err("host 'node0.example' is not known"));
  agents.start(own, {"count", "met"}, job_secret, variables);
  write_file(known, "");
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  for (const auto& outcome : outcomes) CHECK(outcome.code() == 0);
  CHECK(has(outcomes[0].out + outcomes[1].out, "met=2"));
}

TEST_CASE("The machine that waits says which one was turned away, and why") {
  Agents agents({"--nnodes=2", "--label=none"});
  const Words verbs{"print", "ran"};
  Run& waits = agents.start({"--node-rank=0", "--join-timeout=8"}, verbs);
  for (int time = 0; time < 2; ++time) {
    const auto other = agents.start({"--node-rank=1", "--max-restarts=2", "--join-timeout=8"}, verbs).wait();
    CHECK(other.code() == 125);
    CHECK(has(other.err, "--max-restarts is 2, but 0 there"));
  }
  // Before it proves that it has the secret, only its address is known.
  const auto stranger = agents.start({"--node-rank=1", "--join-timeout=8"}, verbs, "of another job, also long").wait();
  CHECK(stranger.code() == 125);
  const std::string warning = " was turned away: --max-restarts is 2 there, 0 here\n";
  REQUIRE(waits.wait_for_err(warning));
  const auto outcome = waits.wait();
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 125);
  CHECK(count(outcome.err, "ddrun: warning: ") == 2);
  CHECK(count(outcome.err, warning) == 1);
  CHECK(has(outcome.err, "error: only 1 of 2 machines came within --join-timeout (8 s): "));
  CHECK(has(outcome.err, "; turned away: "));
  CHECK(has(outcome.err, "): --max-restarts is 2 there, 0 here; 127.0.0.1: another secret\n"));
  CHECK(waits.all_gone());
}
