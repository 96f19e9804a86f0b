// How a job of several agents ends when it does not end well, and who is not let in.

#include <signal.h>
#include <sys/stat.h>

#include <cstdlib>

#include "agents.hpp"
#include "ddrun/test/files.hpp"

using namespace ddrun::test;

TEST_CASE("A --before that fails on one of two machines ends the job on both, with its code") {
  const TemporaryDirectory directory;
  const std::string there = directory.path() + "/there";
  Agents agents({"--nnodes=2", "--rdzv-id=before", "--max-restarts=3"});
  agents.start({"--node-rank=0", "--before=echo $GROUP_RANK of $GROUP_WORLD_SIZE; touch " + there},
               {"print", "up", "pause"});
  agents.start({"--node-rank=1", "--before=until [ -e " + there + " ]; do sleep 0.01; done; exit 7"},
               {"print", "up", "pause"});
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  for (const auto& outcome : outcomes) {
    CHECK(outcome.code() == 7);
    CHECK(count(outcome.err, "--before failed on ") == 1);
    CHECK(has(outcome.err, ": exited with code 7\n"));
  }
  CHECK(has(outcomes[0].out, ":before] 0 of 2\n"));
  CHECK_FALSE(has(outcomes[1].out, "up"));
}

TEST_CASE("A worker that failed first on another machine is named there and where the coordinator is") {
  const TemporaryDirectory directory;
  const std::string now = directory.file("now");
  Agents agents({"--nnodes=2", "--rdzv-id=two-programs"});
  agents.start({"--node-rank=0"}, {"await", now, "error", "RuntimeError: Connection closed by peer", "error",
                                   "Traceback (most recent call last):", "error",
                                   "ConnectionResetError: [Errno 104] Connection reset by peer", "exit", "3"});
  // It raises, and takes its time to end.
  agents.start({"--node-rank=1", "--local-ranks-filter=9"},
               {"error", "Traceback (most recent call last):", "error", "ValueError: shard 17 is corrupt", "touch", now,
                "forever"});
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  for (const auto& outcome : outcomes) {
    CHECK(outcome.code() == 3);
    CHECK(has(outcome.err, "ddrun: error: rank 1 failed first, after "));
    CHECK(has(outcome.err, "ValueError: shard 17 is corrupt\n"));
    CHECK(has(outcome.err, "  status:  rank 0 exited with code 3 after "));
  }
}

TEST_CASE("A coordinator that does not answer is lost, once it was looked for in vain") {
  Agents agents({"--nnodes=2", "--heartbeat-interval=0.1", "--heartbeat-misses=10", "--coordinator-timeout=1"});
  start_two(agents);
  const pid_t agent = Agents::agent_of(agents[0]);
  REQUIRE(agents[0].signal(agent, SIGSTOP));
  const auto second = agents[1].wait();
  INFO(second.err);
  CHECK(second.code() == 125);
  CHECK(has(second.err, "nothing was heard from the coordinator on "));
  CHECK(has(second.err, "; then the coordinator could not be reached in time"));
  REQUIRE(agents[0].signal(agent, SIGCONT));
  const auto first = agents[0].wait();
  INFO(first.err);
  CHECK(first.code() == 125);
  CHECK(agents[0].all_gone());
}

TEST_CASE("A signal on one machine is not kept waiting by the console of another") {
  Agents agents({"--nnodes=2", "--shutdown-timeout=0.1"});
  const Words verbs = {"print", "up", "lines", "200000", "forever"};
  const std::size_t signaled = GENERATE(0, 1);
  Run& first = agents.start({"--node-rank=0"}, verbs);
  Run& second = agents.start({"--node-rank=1"}, verbs);
  REQUIRE(first.wait_for_out("up"));
  REQUIRE(second.wait_for_out("up"));
  agents[signaled].signal(SIGTERM);
  // Neither is read.
  CHECK(first.all_gone());
  CHECK(second.all_gone());
  for (const auto& outcome : agents.finish()) {
    DDRUN_SHOW(outcome);
    CHECK(std::abs(outcome.code()) % 128 == SIGTERM);
  }
}

TEST_CASE("Each machine's --events has the verdict") {
  const TemporaryDirectory directory;
  Agents agents({"--nnodes=2"});
  const std::string code = GENERATE("0", "3");
  agents.start({"--node-rank=0", "--events=" + directory.file("0")}, {"exit", code});
  agents.start({"--node-rank=1", "--events=" + directory.file("1")}, {"exit", "0"});
  INFO(shown(agents.finish()));
  for (const char* file : {"0", "1"}) {
    const std::string events = read_file(directory.file(file));
    INFO(events);
    CHECK(count(events, R"("event":"verdict")") == 1);
    CHECK(has(events,
              code == "0" ? R"("verdict":"success","exit_code":0)" : R"("verdict":"worker_failed","exit_code":3)"));
  }
}

TEST_CASE("Agents of a job on several machines know each other by a secret") {
  Agents agents({"--nnodes=2"});
  const TemporaryDirectory home;
  const std::string made = home.path() + "/ddrun/secret";
  SECTION("that one of them makes where there is none") {
    for (int i = 0; i < 2; ++i) agents.start({}, {"exit", "0"}, "", {{"XDG_CONFIG_HOME", home.path()}});
    const auto outcomes = agents.finish();
    INFO(shown(outcomes));
    for (const auto& outcome : outcomes) CHECK(outcome.code() == 0);
    CHECK(count(outcomes[0].err + outcomes[1].err, "made a secret for jobs on several machines: " + made) == 1);
    CHECK(read_file(made).size() == 65);
  }
  SECTION("none, and that is what was asked for") {
    agents.start({"--insecure"}, {"exit", "0"}, "");
    agents.start({"--insecure"}, {"exit", "0"}, "");
    const auto outcomes = agents.finish();
    INFO(shown(outcomes));
    for (const auto& outcome : outcomes) CHECK(outcome.code() == 0);
  }
}

TEST_CASE("Agents of one machine whose port was taken when they began run the coordinator once it is free") {
  const int port = free_port();
  // One of its two addresses: there is no coordinator on the other one either.
  Run other({"python3", "-c",
             "import signal, socket; s = socket.socket(socket.AF_INET6); s.bind(('::1', " + std::to_string(port) +
                 ")); s.listen(); print('up', flush=True); signal.pause()"});
  REQUIRE(other.wait_for_out("up"));
  Agents agents({"--nnodes=2"}, port);
  for (int i = 0; i < 2; ++i) agents.start({}, {"exit", "0"});
  // Mostly connection refused, or that the other agent hung up, which tries both addresses at that moment.
  for (int i = 0; i < 2; ++i) REQUIRE(agents[i].wait_for_err("; trying for "));
  other.signal(SIGKILL);
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  for (const auto& outcome : outcomes) CHECK(outcome.code() == 0);
}

TEST_CASE("The next round begins once the workers of a machine whose sweeper was killed have ended") {
  const TemporaryDirectory directory;
  const std::string go = directory.file("go");
  Agents agents({"--rdzv-id=stubborn", "--nnodes=1:2", "--max-restarts=2", "--last-call=20", "--shutdown-timeout=2"});
  const Words verbs{"env", "DDRUN_ROUND", "print", "up", "await", go};
  Run& first = agents.start({}, verbs);
  REQUIRE(first.wait_for_err("1 of 1 to 2 is there"));  // it runs the coordinator
  Words stubborn{"ignore", "TERM"};
  stubborn.insert(stubborn.end(), verbs.begin(), verbs.end());
  Run& second = agents.start({}, stubborn);
  for (Run* run : {&first, &second}) REQUIRE(run->wait_for_out("up"));
  const auto below = descendants_of(second.pid());
  REQUIRE(below.size() == 3);  // sweeper, agent, worker
  REQUIRE(second.signal(below[0], SIGKILL));
  REQUIRE(first.wait_for_out("DDRUN_ROUND=2"));
  CHECK(::kill(below[2], 0) != 0);
  write_file(go, "");
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  CHECK(outcomes[0].code() == 0);
  CHECK(outcomes[1].code() == 125);
}

TEST_CASE("A secret of words is warned about once in a job") {
  Agents agents({"--nnodes=2"});
  for (int i = 0; i < 2; ++i) agents.start({}, {"exit", "0"}, "sixteen bytes and more");
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  for (const auto& outcome : outcomes) CHECK(outcome.code() == 0);
  CHECK(count(outcomes[0].err + outcomes[1].err, "the secret is short and looks like words") == 1);
}

TEST_CASE("A dry run says where the machines would meet, and no rank that is not known yet") {
  const auto outcome =
      finish(command({"--nnodes=2:3", "--rdzv-endpoint=127.0.0.1:29400", "--dry-run", "-n", "2", "true"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(has(outcome.out, "once 2 to 3 machines have met at 127.0.0.1:29400, where this one would run the coordinator"));
  CHECK(has(outcome.out, "  LOCAL_WORLD_SIZE=2\n"));
  CHECK(has(outcome.out, "local rank 1:"));
  for (const char* variable : {" RANK=", " WORLD_SIZE=", " MASTER_ADDR=", " MASTER_PORT="}) {
    CHECK_FALSE(has(outcome.out, variable));
  }
}

TEST_CASE("An agent whose report nobody reads is no lost node, and keeps nobody") {
  const TemporaryDirectory directory;
  const std::string fifo = directory.file("report");
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  // It waits five seconds for a reader: for longer than an agent may be silent while the job runs.
  Agents agents({"--nnodes=2", "--rdzv-id=two-programs", "--heartbeat-interval=1", "--heartbeat-misses=3"});
  const std::string events = directory.file("events");
  agents.start({"--node-rank=0", "--events=" + events}, {"exit", "3"});
  agents.start({"--node-rank=1", "--report=" + fifo}, {"forever"});
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  CHECK(outcomes[0].code() == 3);
  CHECK(has(read_file(events), "\"event\":\"verdict\""));
  CHECK_FALSE(has(read_file(events), "\"event\":\"lost\""));
  CHECK(outcomes[1].code() == 3);
  CHECK(has(outcomes[1].err, "--report: cannot write " + fifo + ": it has no reader"));
}

TEST_CASE("A second job at the same place is turned away, also where neither has a name") {
  const TemporaryDirectory directory;
  const std::string go = directory.file("go");
  Agents agents({"--nnodes=2"});
  start_two(agents, {"print", "up", "await", go});
  for (int node = 0; node < 2; ++node) {
    const auto other = agents.start({}, {"print", "other", "await", go}).wait();
    INFO(other.err);
    CHECK(other.code() == 125);
    CHECK(has(other.err,
              "serves a job that runs another program, or the same with other arguments; give each job an "
              "--rdzv-id of its own"));
    CHECK_FALSE(has(other.out, "other"));
  }
  write_file(go, "");
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  for (int node = 0; node < 2; ++node) CHECK(outcomes[static_cast<std::size_t>(node)].code() == 0);
}

TEST_CASE("A defect of ddrun on one machine ends the job in order on both, and all name the step") {
  const auto [decider, step, where] =
      GENERATE(table<std::string, std::string, std::size_t>({{"member:in_round", "START in the state waiting", 1},
                                                             {"member:waiting", "WELCOME in the state joining", 1},
                                                             {"coordinator:running", "START in the state opening", 0},
                                                             {"coordinator:stopping", "STOP in the state running", 0},
                                                             {"dialer:joined", "its answer in the state joining", 1},
                                                             {"group", "Start in the state running", 1}}));
  CAPTURE(decider);
  const bool fails = decider == "coordinator:stopping";
  const Words verbs = fails ? Words{"print", "up", "exit", "3"} : Words{"print", "up", "pause"};
  Agents agents({"--nnodes=2", "--rdzv-id=defect", "--join-timeout=2", "--heartbeat-interval=0.1"});
  for (const std::size_t node : {0, 1}) {
    const std::string wrong = node == where ? decider : "";
    agents.start({"--node-rank=" + std::to_string(node)}, verbs, job_secret, {{"DDRUN_WRONG_STEP", wrong}});
  }
  const auto outcomes = agents.finish();
  INFO(shown(outcomes));
  for (const auto& outcome : outcomes) CHECK(outcome.code() == 125);
  CHECK(has(outcomes[where].err, "took a wrong step, a defect of ddrun: " + step));
  const bool has_joined = decider != "member:waiting" && decider != "dialer:joined";
  if (has_joined) CHECK(has(outcomes[1 - where].err, "took a wrong step, a defect of ddrun: " + step));
}
