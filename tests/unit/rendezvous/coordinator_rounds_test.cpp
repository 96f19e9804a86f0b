// How rounds begin, and with which ranks.

#include "ddrun/test/catch.hpp"
#include "scripted_job.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using ddrun::test::ScriptedJob;

TEST_CASE("a round of a fixed size begins when all are there") {
  ScriptedJob job(2, 2);
  const LinkId b = job.joins("b");
  CHECK(job.next<Welcome>(b) == Welcome{"a", 1000, 3, "job"});
  const Waiting waiting = job.next<Waiting>(b);
  CHECK(waiting == Waiting{1, 2, 2, false, "1 more node"});
  const LinkId a = job.joins("a");
  CHECK(job.coordinator().round() == 1);
  const Open open = job.next<Open>(a);
  CHECK(open.round == 1);
  CHECK(open.address == "10.0.0.2");
  CHECK(open.addresses == std::vector<std::string>{"10.0.0.1", "10.0.0.2"});
  CHECK_FALSE(job.has<Start>(b));
  job.opens(4711);
  const RankAssignment first = job.next<Start>(a).ranks;
  const RankAssignment second = job.next<Start>(b).ranks;
  CHECK(first.node_rank == 0);
  CHECK(first.world_size == 4);
  CHECK(second.node_rank == 1);
  CHECK(second.base_rank == 2);
  CHECK(second.master_addr == "10.0.0.2");
  CHECK(second.master_port == 4711);
  CHECK(second.max_restarts == 3);
}

TEST_CASE("when all have succeeded and stopped everybody hears of success") {
  ScriptedJob job(2, 2);
  const LinkId a = job.joins("a");
  const LinkId b = job.joins("b");
  job.opens();
  for (const LinkId link : {a, b}) job.succeeds(link);
  CHECK_FALSE(job.coordinator().verdict());
  job.stops(b);
  CHECK_FALSE(job.has<VerdictMessage>(a));
  job.stops(a);
  CHECK(job.next<VerdictMessage>(a).exit_code == 0);
  CHECK(job.next<VerdictMessage>(b).kind == VerdictKind::success);
  CHECK_FALSE(job.coordinator().done());
  job.breaks(a, "closed");
  job.breaks(b, "closed");
  CHECK(job.coordinator().done());
  CHECK_FALSE(job.coordinator().next_deadline());
}

TEST_CASE("a failure is followed by a restart until none is left") {
  ScriptedJob job(2, 2, {{"max_restarts", "1"}});
  const LinkId a = job.joins("a");
  const LinkId b = job.joins("b");
  job.opens();
  job.fails(b, 3, 7);
  CHECK(job.next<Stop>(a) == Stop{1, true, "rank 3 on b exited with code 7", 0});
  job.stops(a);
  CHECK(job.coordinator().round() == 1);
  job.stops(b);
  CHECK(job.coordinator().round() == 2);
  job.opens();
  CHECK(job.next<Start>(b).ranks.restart_count == 0);
  CHECK(job.next<Start>(b).ranks.restart_count == 1);
  job.fails(a, 0, 5);
  CHECK_FALSE(job.next<Stop>(b).another_round);
  job.stops(a, "details");
  job.stops(b);
  const VerdictMessage verdict = job.next<VerdictMessage>(b);
  CHECK(verdict == job.next<VerdictMessage>(a));
  CHECK(verdict.kind == VerdictKind::worker_failed);
  CHECK(verdict.exit_code == 5);
  CHECK(verdict.host == "a");
  CHECK(verdict.rank == 0);
  CHECK(verdict.cause == "details");
  CHECK(verdict.restarts == 1);
  CHECK(verdict.why == "rank 0 on a exited with code 5; no restart is left");
}
