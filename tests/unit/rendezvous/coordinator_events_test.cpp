// What the agent of the coordinator, or node rank 0, is told for --events and --report.

#include <nlohmann/json.hpp>

#include "ddrun/test/catch.hpp"
#include "scripted_job.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using ddrun::test::ScriptedJob;
using nlohmann::json;

namespace {

std::vector<std::string> names(const ScriptedJob& job) {
  std::vector<std::string> names;
  for (const auto& line : job.events()) names.push_back(json::parse(line).at("event"));
  return names;
}

json last(const ScriptedJob& job, const std::string& name) {
  json found;
  for (const auto& line : job.events()) {
    const json event = json::parse(line);
    if (event.at("event") == name) found = event;
  }
  return found;
}

}  // namespace

TEST_CASE("the events of a job, in order") {
  ScriptedJob job(1, 2, {{"max_restarts", "1"}, {"last_call_ms", "0"}});
  Join own = job.join_of("a");
  own.runs_coordinator = true;
  const LinkId a = job.joins(own);
  job.opens();
  const LinkId b = job.joins("b");
  job.stops(a);
  job.opens();
  job.fails(b, 2, 3);
  job.stops(a);
  job.stops(b);
  job.opens();
  job.breaks(b);
  job.stops(a);
  CHECK(names(job) == std::vector<std::string>{"joined", "round", "started", "joined", "ended", "round", "started",
                                               "failed", "ended", "restart", "round", "started", "lost", "ended",
                                               "verdict"});
  CHECK(last(job, "joined") == json{{"event", "joined"},
                                    {"host", "b"},
                                    {"address", "10.0.0.2"},
                                    {"local_world_size", 2},
                                    {"nodes", 2},
                                    {"spare", false}});
  CHECK(last(job, "round").at("hosts") == json{"a", "b"});
  CHECK(last(job, "round").at("world_size") == 4);
  CHECK(last(job, "failed").at("exit_code") == 3);
  CHECK(last(job, "failed").at("node_rank") == 1);
  CHECK(last(job, "restart").at("restarts") == 1);
  CHECK(last(job, "lost").at("why") == "b (10.0.0.2, node rank 1) was lost: connection reset by peer");
  CHECK(last(job, "verdict").at("verdict") == "node_lost");
  CHECK(last(job, "verdict").at("exit_code") == 125);
}

TEST_CASE("without an agent of its own the coordinator tells node rank 0, also what was before it had one") {
  ScriptedJob job(2, 2);
  job.joins("b");
  CHECK(job.events().empty());
  job.joins("a");
  CHECK(names(job) == std::vector<std::string>{"joined", "joined", "round"});
  CHECK(job.node_rank(2) == 0);
  CHECK(job.counts(2)[FromCoordinator(EventLine{}).index()] == 3);
}

TEST_CASE("reports of all nodes go to the agent of the coordinator") {
  ScriptedJob job(2, 2);
  const LinkId b = job.joins("b");
  Join own = job.join_of("a");
  own.runs_coordinator = true;
  const LinkId a = job.joins(own);
  job.opens();
  for (const LinkId link : {a, b}) {
    job.succeeds(link);
    job.stops(link, "", "workers of " + std::to_string(link));
  }
  CHECK(job.next<NodeReport>(a) == NodeReport{1, 0, "a", "workers of 2"});
  CHECK(job.next<NodeReport>(a) == NodeReport{1, 1, "b", "workers of 1"});
  CHECK(job.has<VerdictMessage>(a));
  CHECK_FALSE(job.has<NodeReport>(b));
}

TEST_CASE("a host name that is not UTF-8 does no harm") {
  ScriptedJob job(1, 1);
  Join own = job.join_of("caf\xe9");
  own.runs_coordinator = true;
  job.joins(own);
  CHECK_FALSE(last(job, "joined").is_null());
}
