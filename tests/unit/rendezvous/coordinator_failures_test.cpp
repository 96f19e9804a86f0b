// Workers that fail and nodes that are lost.

#include <signal.h>

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"
#include "scripted_job.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using ddrun::test::ScriptedJob;

namespace {

struct Pair {
  Pair(int min_nodes, int max_nodes, ddrun::rendezvous::Settings changed)
      : job(min_nodes, max_nodes, std::move(changed)) {
    a = job.joins("a");
    b = job.joins("b");
    if (job.coordinator().job().round == 0) job.wait(Milliseconds{30'000});
    job.opens();
    job.forget_all();
  }
  void both_stop() {
    job.stops(a);
    job.stops(b);
  }
  ScriptedJob job;
  LinkId a = 0;
  LinkId b = 0;
};

Pair running_pair(ddrun::rendezvous::Settings changed = {}, int min_nodes = 2, int max_nodes = 2) {
  return Pair(min_nodes, max_nodes, std::move(changed));
}

}  // namespace

TEST_CASE("what a rank has declared is the cause, not an exit code that it has not ended with") {
  ScriptedJob job(1, 1);
  const LinkId a = job.joins("a");
  job.opens();
  Failed failed{.round = job.coordinator().job().round, .rank = 3, .code = 5, .why = "called MPI_Abort(5)"};
  failed.declared = true;
  job.sends(a, failed);
  CHECK(job.next<Stop>(a).why.starts_with("rank 3 on a called MPI_Abort(5); restarting"));
  CHECK(std::ranges::any_of(job.events(), [](const std::string& event) {
    return event.find(R"x("why":"rank 3 on a called MPI_Abort(5)")x") != std::string::npos;
  }));
}

TEST_CASE("STOP has the reason that FAILED had, and the verdict's sentence has none") {
  const std::string reason = GENERATE("", "disk; is full");
  const std::string text = reason.empty() ? "" : ": " + reason;
  Pair pair = running_pair({{"max_restarts", "1"}});
  const auto fail = [&] {
    pair.job.sends(pair.b, Failed{.round = pair.job.coordinator().job().round, .rank = 3, .code = 7, .why = reason});
    return pair.job.next<Stop>(pair.a).why;
  };
  CHECK(fail() == concat("rank 3 on b exited with code 7", text, "; restarting all workers (restart 1 of 1)"));
  pair.both_stop();
  pair.job.opens();
  CHECK(fail() == "rank 3 on b exited with code 7; no restart is left");
  pair.both_stop();
  CHECK(pair.job.next<VerdictMessage>(pair.a).why == "rank 3 on b exited with code 7; no restart is left");
}

TEST_CASE("exit codes of a failure") {
  struct Row {
    bool by_signal;
    int code;
    int exit_code;
    std::string why;
  };
  const std::vector<Row> rows = {
      {false, 1, 1, "rank 2 on b exited with code 1"},
      {false, 255, 255, "rank 2 on b exited with code 255"},
      {true, SIGKILL, 137, "rank 2 on b killed by SIGKILL"},
      {true, SIGTERM, 143, "rank 2 on b killed by SIGTERM"},
  };
  for (const Row& row : rows) {
    Pair pair = running_pair({{"max_restarts", "0"}});
    Failed failed;
    failed.round = 1;
    failed.rank = 2;
    failed.by_signal = row.by_signal;
    failed.code = row.code;
    pair.job.sends(pair.b, failed);
    pair.both_stop();
    const VerdictMessage verdict = pair.job.next<VerdictMessage>(pair.a);
    CHECK(verdict.exit_code == row.exit_code);
    CHECK(verdict.why.compare(0, row.why.size(), row.why) == 0);
    CHECK(verdict.signal == (row.by_signal ? row.code : 0));
    CHECK(verdict.node_rank == 1);
  }
}

TEST_CASE("output of a stopped worker gives way to an explained failure on another node") {
  const Failure stopped{.full = "stopped", .own = true, .stopped = true, .time_us = 10};
  const Failure ended{.full = "ended", .own = true, .time_us = 10};
  const Failure words{.full = "words", .own = true, .stopped = true, .time_us = 20};
  const Failure explained{.full = "explained", .own = true, .explained = true, .time_us = 30};
  const auto verdict_for = [&](const Failure& cause, bool with_explained) {
    ScriptedJob job(3, 3, {{"max_restarts", "0"}});
    for (const char* host : {"a", "b", "c"}) job.joins(host);
    job.opens();
    job.fails(1, 0, 1);
    job.stops(2, words);
    if (with_explained) job.stops(3, explained);
    job.stops(1, cause);
    if (!with_explained) job.stops(3);
    const auto verdict = job.next<VerdictMessage>(1);
    CHECK(verdict.cause == cause.full);
    return verdict.failed_first;
  };
  CHECK(verdict_for(stopped, true) == FailedFirst{"explained", "c", 2});
  CHECK(verdict_for(stopped, false) == FailedFirst{});
  CHECK(verdict_for(ended, true) == FailedFirst{});
}

TEST_CASE("failures in a row with one known cause end the job") {
  const auto of = [](const std::string& key, bool own = true) {
    return Failure{.full = "{}", .own = own, .time_us = 1, .key = key};
  };
  const auto fails = [&](Pair& pair, const Failure& cause, Milliseconds after, int code = 1) {
    pair.job.wait(after);
    pair.job.fails(pair.a, 0, code);
    pair.job.stops(pair.a, cause);
    pair.job.stops(pair.b);
    if (pair.job.has<VerdictMessage>(pair.a)) return true;
    pair.job.opens();
    return false;
  };
  const Milliseconds later{5'000};
  const Milliseconds soon{900};
  {
    Pair pair = running_pair({{"max_restarts", "9"}});
    CHECK_FALSE(fails(pair, of("x"), later));
    CHECK_FALSE(fails(pair, of("x"), soon));
    CHECK(fails(pair, of("x"), later, 3));
    CHECK(
        pair.job.next<Log>(pair.a).text ==
        "not restarting: 3 failures in a row had the same cause: x (7 restarts saved; --same-cause=0 restarts all the "
        "same)");
    const auto verdict = pair.job.next<VerdictMessage>(pair.b);
    CHECK(verdict.kind == VerdictKind::worker_failed);
    CHECK(verdict.exit_code == 3);
    CHECK(verdict.why == "rank 0 on a exited with code 3; 3 failures in a row had the same cause: x");
  }
  {
    Pair pair = running_pair({{"max_restarts", "9"}});
    CHECK_FALSE(fails(pair, of("x"), soon));
    CHECK(fails(pair, of("x"), soon));
    CHECK(pair.job.next<Log>(pair.a).text ==
          "not restarting: the workers failed within 1 s of their start twice in a row, with the same cause: x (8 "
          "restarts saved; --same-cause=0 restarts all the same)");
  }
  // Another cause, another code, an unknown cause, complaints about peers, and same_cause=0.
  for (const Settings& off : {Settings{{"same_cause", "0"}}, Settings{{"node_max_failures", "9"}}}) {
    Pair pair = running_pair({{"max_restarts", "9"}, off.front()});
    for (int i = 0; i < 5; ++i) CHECK_FALSE(fails(pair, of("x"), soon));
  }
  Pair pair = running_pair({{"max_restarts", "99"}});
  CHECK_FALSE(fails(pair, of("x"), soon, 1));
  CHECK_FALSE(fails(pair, of("x"), soon, 2));
  for (int i = 0; i < 5; ++i) {
    CHECK_FALSE(fails(pair, of(""), soon));
    CHECK_FALSE(fails(pair, of("x", false), soon));
    CHECK_FALSE(fails(pair, {}, soon));
    CHECK_FALSE(fails(pair, of("x"), soon));
    CHECK_FALSE(fails(pair, of("y"), soon));
  }
}

TEST_CASE("a reason on another node is added to a cause that only complains about peers") {
  const Failure complains{.full = "complains", .time_us = 50};
  const Failure has_reason{.full = "has a reason", .own = true, .time_us = 50};
  const Failure late{.full = "late", .own = true, .time_us = 40};
  const Failure early{.full = "early", .own = true, .time_us = 30};
  const auto verdict_for = [&](const Failure& cause) {
    ScriptedJob job(3, 3, {{"max_restarts", "0"}});
    for (const char* host : {"a", "b", "c"}) job.joins(host);
    job.opens();
    job.fails(1, 0, 1);
    job.stops(2, late);
    job.stops(1, cause);
    job.stops(3, early);
    return job.next<VerdictMessage>(1);
  };
  const VerdictMessage verdict = verdict_for(complains);
  CHECK(verdict.rank == 0);
  CHECK(verdict.exit_code == 1);
  CHECK(verdict.cause == "complains");
  CHECK(verdict.failed_first == FailedFirst{"early", "c", 2});
  CHECK(verdict_for(has_reason).failed_first == FailedFirst{});
  CHECK(verdict_for({}).failed_first == FailedFirst{});  // nothing is known of the cause
}

TEST_CASE("of two failures the first received is the cause, and only its details are passed on") {
  Pair pair = running_pair({{"max_restarts", "0"}});
  pair.job.fails(pair.b, 2, 3);
  pair.job.fails(pair.a, 0, 4);
  pair.job.stops(pair.a, "of a");
  pair.job.stops(pair.b, "of b");
  const VerdictMessage verdict = pair.job.next<VerdictMessage>(pair.a);
  CHECK(verdict.exit_code == 3);
  CHECK(verdict.cause == "of b");
}

TEST_CASE("a failure that must not be restarted after ends the job whatever is left") {
  Pair pair = running_pair();
  pair.job.fails(pair.a, 0, 3, false);
  CHECK_FALSE(pair.job.next<Stop>(pair.b).another_round);
  pair.both_stop();
  CHECK(pair.job.next<VerdictMessage>(pair.b).why == "rank 0 on a exited with code 3");
}

TEST_CASE("what belongs to an earlier round is ignored") {
  Pair pair = running_pair();
  pair.job.fails(pair.a, 0, 3);
  pair.both_stop();
  pair.job.opens();
  pair.job.forget_all();
  Failed old;
  old.round = 1;
  old.code = 9;
  pair.job.sends(pair.a, old);
  pair.job.sends(pair.a, Succeeded{1});
  pair.job.sends(pair.b, Stopped{1});
  pair.job.sends(pair.b, Opened{1, 5});
  CHECK(pair.job.received(pair.a).empty());
  CHECK(pair.job.coordinator().job().budget.used() == 1);
  pair.job.succeeds(pair.a);
  pair.job.succeeds(pair.b);
  pair.both_stop();
  CHECK(pair.job.next<VerdictMessage>(pair.a).kind == VerdictKind::success);
}

TEST_CASE("a lost node uses up a restart, and is the cause when none is left") {
  Pair pair = running_pair({{"max_restarts", "1"}}, 1, 2);
  pair.job.disconnects(pair.b);
  CHECK(pair.job.next<Stop>(pair.a) ==
        Stop{1, true,
             "b (10.0.0.2, node rank 1) was lost: connection reset by peer; restarting all workers (restart 1 of 1)",
             0});
  pair.job.stops(pair.a);
  pair.job.opens();
  CHECK(pair.job.next<Start>(pair.a).ranks.node_count == 1);
  CHECK(pair.job.coordinator().job().budget.used() == 1);
  const LinkId c = pair.job.joins("c");
  pair.job.wait(Milliseconds{30'000});
  pair.job.stops(pair.a);
  pair.job.opens();
  pair.job.disconnects(c);
  pair.job.stops(pair.a);
  const VerdictMessage verdict = pair.job.next<VerdictMessage>(pair.a);
  CHECK(verdict.kind == VerdictKind::node_lost);
  CHECK(verdict.exit_code == 125);
  CHECK(verdict.host == "c");
  CHECK(verdict.node_rank == 1);
  CHECK(verdict.why == "c (10.0.0.3, node rank 1) was lost: connection reset by peer; no restart is left");
}

TEST_CASE("a silent node is lost after the heartbeat time, not before") {
  Pair pair = running_pair({{"max_restarts", "0"}});
  pair.job.wait(Milliseconds{10'500});
  pair.job.goes_silent(pair.b);
  // Its last answer was up to one interval ago.
  pair.job.wait(Milliseconds{1'999});
  CHECK_FALSE(pair.job.has<Stop>(pair.a));
  pair.job.wait(Milliseconds{1'001});
  CHECK(pair.job.next<Stop>(pair.a).why == "b (10.0.0.2, node rank 1) was lost: nothing was heard from it for 3 s");
  CHECK(pair.job.has<Refused>(pair.b));
  CHECK(pair.job.closed(pair.b));
}

TEST_CASE("a failure that is only the echo of a lost node is not the cause") {
  SECTION("the connection breaks right after it") {
    Pair pair = running_pair({{"max_restarts", "0"}});
    pair.job.fails(pair.a, 0, 1);
    pair.job.wait(Milliseconds{900});
    pair.job.disconnects(pair.b);
    pair.job.stops(pair.a, "echo");
    const VerdictMessage verdict = pair.job.next<VerdictMessage>(pair.a);
    CHECK(verdict.kind == VerdictKind::node_lost);
    CHECK(verdict.host == "b");
    CHECK(verdict.cause.empty());
    CHECK(verdict.why ==
          "b (10.0.0.2, node rank 1) was lost: connection reset by peer; at the same time rank 0 on a "
          "exited with code 1");
  }
  SECTION("the node was silent before") {
    Pair pair = running_pair({{"max_restarts", "0"}});
    pair.job.goes_silent(pair.b);
    pair.job.wait(Milliseconds{1'200});
    pair.job.fails(pair.a, 0, 1);
    pair.job.stops(pair.a);
    CHECK_FALSE(pair.job.coordinator().job().verdict);
    pair.job.wait(Milliseconds{3'000});
    CHECK(pair.job.next<VerdictMessage>(pair.a).kind == VerdictKind::node_lost);
  }
  SECTION("an echo after which nothing may restart does not keep the loss from it") {
    Pair pair = running_pair({}, 1, 2);
    pair.job.fails(pair.a, 0, 3, false);
    CHECK_FALSE(pair.job.next<Stop>(pair.a).another_round);
    pair.job.wait(Milliseconds{500});
    pair.job.disconnects(pair.b);
    CHECK(pair.job.next<Stop>(pair.a) ==
          Stop{1, true,
               "b (10.0.0.2, node rank 1) was lost: connection reset by peer; at the same time rank 0 on a "
               "exited with code 3; restarting all workers (restart 1 of 3)",
               0});
    pair.job.stops(pair.a);
    CHECK_FALSE(pair.job.coordinator().job().verdict);
    CHECK(pair.job.coordinator().job().budget.used() == 1);
    pair.job.opens();
    CHECK(pair.job.next<Start>(pair.a).ranks.restart_count == 1);
  }
  SECTION("but one that goes long after is another matter") {
    Pair pair = running_pair({{"max_restarts", "0"}});
    pair.job.fails(pair.a, 0, 1);
    pair.job.wait(Milliseconds{1'500});
    pair.job.disconnects(pair.b);
    pair.job.stops(pair.a);
    CHECK(pair.job.next<VerdictMessage>(pair.a).kind == VerdictKind::worker_failed);
  }
  SECTION("nor one that had stopped") {
    Pair pair = running_pair({{"max_restarts", "0"}});
    pair.job.fails(pair.a, 0, 1);
    pair.job.stops(pair.b);
    pair.job.disconnects(pair.b);
    pair.job.stops(pair.a);
    CHECK(pair.job.next<VerdictMessage>(pair.a).kind == VerdictKind::worker_failed);
  }
}

TEST_CASE("two nodes that are lost at once cost one restart") {
  ScriptedJob job(1, 3, {{"max_restarts", "1"}});
  for (const char* host : {"a", "b", "c"}) job.joins(host);
  job.opens();
  job.disconnects(2);
  job.disconnects(3);
  job.stops(1);
  CHECK(job.coordinator().job().round == 2);
  CHECK(job.coordinator().job().budget.used() == 1);
}

TEST_CASE("a node that is lost while others make room for a newcomer costs a restart") {
  for (const int restarts : {0, 1}) {
    ScriptedJob job(1, 3, {{"max_restarts", std::to_string(restarts)}});
    job.joins("a");
    job.joins("b");
    job.wait(Milliseconds{30'000});
    job.opens();
    job.joins("c");
    job.disconnects(2);
    job.stops(1);
    CHECK(job.coordinator().job().budget.used() == restarts);
    CHECK(job.coordinator().job().verdict.has_value() == (restarts == 0));
  }
}

TEST_CASE("a node that answers pings but never sends STOPPED is lost after its time") {
  Pair pair = running_pair({{"grace_ms", "5000"}}, 1, 2);
  pair.job.fails(pair.a, 0, 1);
  pair.job.stops(pair.a);
  pair.job.wait(Milliseconds{34'999});
  CHECK(pair.job.coordinator().job().round == 1);
  CHECK_FALSE(pair.job.has<Refused>(pair.b));
  pair.job.wait(Milliseconds{1});
  // Its workers have 4.5 s, the grace and 1 s from now on.
  pair.job.wait(Milliseconds{10'499});
  CHECK(pair.job.coordinator().job().round == 1);
  pair.job.wait(Milliseconds{1});
  CHECK(pair.job.coordinator().job().round == 2);
  CHECK(pair.job.next<Refused>(pair.b).why ==
        "b (10.0.0.2, node rank 1) was lost: its workers were not stopped after 35 s");
  CHECK(pair.job.coordinator().job().budget.used() == 1);
}

TEST_CASE("a node that goes after it has finished is missed only if it had the store") {
  for (const bool first : {false, true}) {
    Pair pair = running_pair({{"max_restarts", "0"}});
    const LinkId done = first ? pair.a : pair.b;
    const LinkId other = first ? pair.b : pair.a;
    pair.job.succeeds(done);
    pair.job.stops(done);
    pair.job.disconnects(done);
    if (!first) pair.job.succeeds(other);
    pair.job.stops(other);
    CHECK(pair.job.next<VerdictMessage>(other).kind == (first ? VerdictKind::node_lost : VerdictKind::success));
  }
}

TEST_CASE("a node that goes between SUCCEEDED and STOPPED is lost") {
  Pair pair = running_pair({{"max_restarts", "0"}});
  pair.job.succeeds(pair.b);
  pair.job.disconnects(pair.b);
  CHECK(pair.job.has<Stop>(pair.a));
}

TEST_CASE("too few after a loss wait for a newcomer, and end with that cause if none comes") {
  for (const bool comes : {true, false}) {
    Pair pair = running_pair();
    pair.job.disconnects(pair.b);
    pair.job.stops(pair.a);
    CHECK(pair.job.coordinator().job().round == 1);
    CHECK(pair.job.next<Waiting>(pair.a).joined == 1);
    pair.job.wait(Milliseconds{599'999});
    if (comes) {
      pair.job.joins("c");
      CHECK(pair.job.coordinator().job().round == 2);
      continue;
    }
    pair.job.wait(Milliseconds{1});
    const VerdictMessage verdict = pair.job.next<VerdictMessage>(pair.a);
    CHECK(verdict.kind == VerdictKind::node_lost);
    CHECK(verdict.why ==
          "b (10.0.0.2, node rank 1) was lost: connection reset by peer; then only 1 of 2 machines "
          "came within --join-timeout (600 s): a (10.0.0.1)");
  }
}

TEST_CASE("a host whose workers fail too often is left out, and a spare takes its place") {
  ScriptedJob job(2, 2, {{"node_max_failures", "2"}, {"max_restarts", "9"}});
  Join own = job.own_join_of("a");
  const LinkId a = job.joins(own);
  const LinkId b = job.joins("b");
  const LinkId c = job.joins("c");
  const LinkId d = job.joins("d");
  for (int i = 0; i < 2; ++i) {
    job.opens();
    job.fails(b, 2, 1);
    job.stops(a);
    job.stops(b);
  }
  CHECK(job.next<Refused>(b).why == "b is left out: its workers failed 2 times (--node-max-failures)");
  CHECK(job.node_rank(c) == 1);
  CHECK(job.next<Refused>(job.joins("b")).kind == RefusalKind::permanent);
  // The coordinator's own agent stays, but takes no part.
  for (int i = 0; i < 2; ++i) {
    job.opens();
    job.fails(a, 0, 1, true);
    job.stops(a);
    job.stops(c);
  }
  CHECK(job.node_rank(a) == -1);
  CHECK_FALSE(job.closed(a));
  CHECK_FALSE(job.coordinator().job().verdict);
  CHECK(job.node_rank(d) >= 0);
}

TEST_CASE("two machines are never one: their failures are counted apart, and their labels differ") {
  const auto member = [](const ScriptedJob& job, const std::string& name, const std::string& machine) {
    Join join = job.join_of(name);
    join.machine = machine;
    return join;
  };
  // Two names that look like addresses, two with one short name, and two with one full name, as from cloned images.
  for (const auto& [one, other] :
       {std::pair("10.0.0.1", "10.0.0.2"), std::pair("w.1.net", "w.2.net"), std::pair("localhost", "localhost")}) {
    ScriptedJob job(1, 2, {{"node_max_failures", "1"}, {"max_restarts", "9"}});
    Join own = job.own_join_of(one);
    own.machine = "boot 1";
    const LinkId a = job.joins(own);
    const LinkId b = job.joins(member(job, other, "boot 2"));
    job.opens();
    CHECK(job.next<Start>(a).ranks.host == one);
    CHECK(job.next<Start>(b).ranks.host == other);
    job.fails(b, 2, 1);
    job.stops(a);
    job.stops(b);
    CHECK(job.next<Refused>(b).kind == RefusalKind::permanent);
    job.opens();
    CHECK(job.node_rank(a) == 0);
    // The next agent of the excluded machine is recognized by its name and boot id.
    CHECK(job.next<Refused>(job.joins(member(job, other, "boot 2"))).kind == RefusalKind::permanent);
    CHECK(job.has<Welcome>(job.joins(member(job, other, "boot 3"))));
  }
}

TEST_CASE("a signal for all goes to the members of the round that runs, and none that would end the job") {
  ScriptedJob job(2, 2);
  const LinkId a = job.joins("a");
  const LinkId b = job.joins("b");
  const LinkId spare = job.joins("c");
  job.opens();
  const Round round = job.next<Start>(a).round;
  for (const PassSignal wrong : {PassSignal{round, SIGTERM}, PassSignal{round + 1, SIGUSR1}}) job.sends(a, wrong);
  job.sends(spare, PassSignal{round, SIGUSR1});
  CHECK_FALSE(job.has<PassSignal>(b));
  job.sends(a, PassSignal{round, SIGUSR1});
  for (const LinkId link : {a, b}) CHECK(job.next<PassSignal>(link).signal == SIGUSR1);
  CHECK_FALSE(job.has<PassSignal>(spare));
}

TEST_CASE("START names the machines of its round by node rank, of many the first ones") {
  const int count = GENERATE(1, 3, 9);
  ScriptedJob job(count, count);
  std::vector<LinkId> links;
  for (int i = 1; i <= count; ++i) links.push_back(job.joins(concat("n", i)));
  job.opens();
  for (const LinkId link : links) {
    CHECK(job.next<Start>(link).ranks.hosts == (count == 1   ? "n1"
                                                : count == 3 ? "n1, n2, n3"
                                                             : "n1, n2, n3, n4, n5, 4 more"));
  }
}

TEST_CASE("a label is the short name unless another member has it") {
  ScriptedJob job(3, 3);
  const LinkId a = job.joins("n1.cluster.net");
  const LinkId b = job.joins("w.1.net");
  const LinkId c = job.joins("w.2.net");
  job.opens();
  CHECK(job.next<Start>(a).ranks.host == "n1");
  CHECK(job.next<Start>(b).ranks.host == "w.1.net");
  CHECK(job.next<Start>(c).ranks.host == "w.2.net");
}

TEST_CASE("a node that stops without a reason counts as lost") {
  Pair pair = running_pair({{"max_restarts", "0"}});
  pair.job.stops(pair.b);
  pair.job.stops(pair.a);
  CHECK(pair.job.next<VerdictMessage>(pair.a).host == "b");
}

TEST_CASE("a member's text for all others is truncated") {
  Pair pair = running_pair();
  pair.job.sends(pair.b, Leave{LeaveKind::time_is_up, 124, std::string(1'000'000, 'w')});
  CHECK(pair.job.next<Stop>(pair.a).why.size() < 5'000);
}
