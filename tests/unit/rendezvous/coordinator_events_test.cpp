// What the observer gets for --events and --report.

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
  Join own = job.own_join_of("a");
  const LinkId a = job.joins(own);
  job.opens();
  const LinkId b = job.joins("b");
  job.stops(a);
  job.opens();
  job.fails(b, 2, 3);
  job.stops(a);
  job.stops(b);
  job.opens();
  job.disconnects(b);
  job.stops(a);
  CHECK(names(job) == std::vector<std::string>{"joined", "round", "started", "joined", "ended", "round", "started",
                                               "failed", "ended", "restart", "round", "started", "lost", "ended",
                                               "verdict"});
  CHECK(last(job, "joined") == json{{"event", "joined"},
                                    {"round", 1},
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

TEST_CASE("without an own agent the coordinator reports to node rank 0, earlier events included") {
  ScriptedJob job(2, 2);
  job.joins("b");
  CHECK(job.events().empty());
  job.joins("a");
  CHECK(names(job) == std::vector<std::string>{"joined", "joined", "round"});
  CHECK(job.node_rank(2) == 0);
  CHECK(job.counts(2)[FromCoordinator(Log{}).index()] == 3);
}

TEST_CASE("reports of all nodes go to the agent of the coordinator") {
  ScriptedJob job(2, 2);
  const Join own = job.own_join_of("a");
  const LinkId b = job.joins("b");
  const LinkId a = job.joins(own);
  job.opens();
  for (const LinkId link : {a, b}) {
    job.succeeds(link);
    job.stops(link, "", "workers of " + std::to_string(link));
  }
  CHECK(job.next<Log>(a) == Log{LogKind::report, "workers of 2", 1, 0, "a"});
  CHECK(job.next<Log>(a) == Log{LogKind::report, "workers of 1", 1, 1, "b"});
  CHECK(job.has<VerdictMessage>(a));
  CHECK_FALSE(job.has<Log>(b));
}

TEST_CASE("the full cause goes to the coordinator's agent, a short one to the rest") {
  ScriptedJob job(3, 3);
  const LinkId a = job.joins(job.own_join_of("a"));
  const LinkId b = job.joins("b");
  const LinkId c = job.joins("c");
  job.opens();
  job.fails(b, 2, 3, false);
  const auto all_stop = [&](const Failure& cause) {
    job.stops(c, Failure{.full = "all of c", .brief = "c", .own = true});
    job.stops(b, cause);
    job.stops(a);
  };
  SECTION("of usual size") {
    all_stop({"all of b", "b"});
    const VerdictMessage full = job.next<VerdictMessage>(a);
    CHECK(full.cause == "all of b");
    CHECK(full.failed_first == FailedFirst{"all of c", "c", 2});
    for (const LinkId link : {b, c, job.joins("late")}) {
      const VerdictMessage brief = job.next<VerdictMessage>(link);
      CHECK(brief.cause == "b");
      CHECK(brief.failed_first == FailedFirst{"c", "c", 2});
    }
  }
  SECTION("a brief one that is long is not sent to all") {
    all_stop({"all of b", std::string(5'000, 'm')});
    CHECK(job.next<VerdictMessage>(c).cause.empty());
    CHECK(job.next<VerdictMessage>(a).cause == "all of b");
  }
  SECTION("more than an agent sends is dropped on receipt") {
    all_stop({std::string(70'000, 's'), "b"});
    CHECK(job.next<VerdictMessage>(a).cause.empty());
    CHECK(job.next<VerdictMessage>(b).cause.empty());
  }
}

TEST_CASE("an agent that is slow to read reports is not sent more than the transport keeps for it") {
  ScriptedJob job(3, 3, {{"max_restarts", "99"}});
  const LinkId a = job.joins(job.own_join_of("a"));
  job.joins("b");
  job.joins("c");
  job.goes_silent(a);
  const std::string large(3UL << 20U, 'w');
  std::size_t with_workers = 0;
  std::size_t left_out = 0;
  const auto round = [&] {
    job.opens();
    job.fails(2, 2, 1);
    for (LinkId link = 1; link <= 3; ++link) job.stops(link, "", large);
    for (const auto& message : job.received(a)) {
      const auto* report = std::get_if<Log>(&message);
      if (report != nullptr) ++(report->text.empty() ? left_out : with_workers);
    }
  };
  for (int i = 0; i < 6; ++i) round();
  CHECK(with_workers == 10);
  CHECK(left_out == 8);
  // It answers a ping, so it has read all that was sent before.
  job.answers_again(a);
  job.wait(Milliseconds{1'000});
  round();
  CHECK(with_workers == 13);
}

TEST_CASE("a host name that is not UTF-8 does no harm") {
  ScriptedJob job(1, 1);
  Join own = job.own_join_of("caf\xe9");
  job.joins(own);
  CHECK_FALSE(last(job, "joined").is_null());
}
