// A coordinator takes over a job: it knows the last round only by the claims of its members.

#include <map>

#include "ddrun/test/catch.hpp"
#include "scripted_job.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using ddrun::test::ScriptedJob;

namespace {

using Changed = ddrun::rendezvous::Settings;

/// A job with its coordinator of term 7, which has run a round of a, b and c.
struct Before {
  explicit Before(const Changed& changed = {}, int min_nodes = 1, int max_nodes = 3)
      : job(min_nodes, max_nodes, changed) {
    job.options.term = 7;
    for (const char* host : {"a", "b", "c"}) job.joins(host);
    job.wait(Milliseconds{10'000});
    job.opens();
  }
  /// The claim of that member.
  RoundClaim claim_of(LinkId link) {
    const Start start = job.next<Start>(link);
    return {start.term, start.round, start.ranks.node_rank, start.ranks.node_count, start.job_state, false, false};
  }
  ScriptedJob job;
};

/// Its next coordinator, of term 9.
struct After {
  explicit After(const Changed& changed = {}, int min_nodes = 1, int max_nodes = 3)
      : job(min_nodes, max_nodes, changed) {
    job.options.term = 9;
    job.options.host = "b";
    job.now += std::chrono::hours(1000);  // another machine's clock
  }
  LinkId claims(const std::string& host, const RoundClaim& claim) {
    Join join = job.join_of(host);
    join.claim = claim;
    return job.joins(join);
  }
  ScriptedJob job;
};

std::map<LinkId, RoundClaim> claims_of(Before& before) {
  std::map<LinkId, RoundClaim> claims;
  for (const LinkId link : {1U, 2U, 3U}) claims[link] = before.claim_of(link);
  return claims;
}

}  // namespace

TEST_CASE("a coordinator sends its term, and the job state for the next one") {
  Before before;
  CHECK(before.job.next<Welcome>(1).term == 7);
  const RoundClaim claim = before.claim_of(2);
  CHECK(claim.term == 7);
  CHECK(claim.round == 1);
  CHECK(claim.node_count == 3);
  CHECK(claim.job_state == R"({"doublings":0,"restarts":0})");
}

TEST_CASE("a coordinator that is the only one of its job has no term, and no use for claims") {
  ScriptedJob job(1, 1);
  Join join = job.join_of("a");
  join.claim = {3, 17, 2, 4, "{}", true, false};
  const LinkId a = job.joins(join);
  job.opens();
  const Start start = job.next<Start>(a);
  CHECK(start.round == 1);
  CHECK(start.term == 0);
  CHECK(start.job_state.empty());
}

TEST_CASE("once all of the last round are there the job goes on, with their ranks and one restart less") {
  Before before;
  auto claims = claims_of(before);
  After after;
  const LinkId c = after.claims("c", claims[3]);
  CHECK(after.job.next<Waiting>(c).waiting_for == "the others of the last round");
  const LinkId a = after.claims("a", claims[1]);
  CHECK(after.job.coordinator().job().round == 0);
  const LinkId b = after.claims("b", claims[2]);
  after.job.opens();
  CHECK(after.job.coordinator().job().round == 2);
  CHECK(after.job.coordinator().job().budget.used() == 1);
  CHECK(after.job.node_rank(a) == claims[1].node_rank);
  CHECK(after.job.node_rank(b) == claims[2].node_rank);
  CHECK(after.job.node_rank(c) == claims[3].node_rank);
  const Start start = after.job.next<Start>(b);
  CHECK(start.term == 9);
  CHECK(start.job_state == R"({"doublings":1,"restarts":1})");
}

TEST_CASE("a late member is left behind, and newcomers wait for members of the round") {
  Before before;
  auto claims = claims_of(before);
  After after;
  const LinkId new_one = after.claims("d", {});
  const LinkId b = after.claims("b", claims[2]);
  // The other workers have their grace: heartbeat limit, grace, and time to rejoin.
  after.job.wait(Milliseconds{3'000 + 10'000 + 5'500});
  CHECK(after.job.coordinator().job().round == 0);
  after.job.wait(Milliseconds{1'000});
  after.job.opens();
  CHECK(after.job.coordinator().job().round == 2);
  CHECK(after.job.node_rank(b) == claims[2].node_rank);
  CHECK(after.job.node_rank(new_one) >= 0);
}

TEST_CASE("one that was deposed may lead by its own clock, so others of its round are waited for as long") {
  Before before;
  auto claims = claims_of(before);
  After after;
  after.job.options.lease_ttl = Milliseconds{60'000};
  after.claims("b", claims[2]);
  after.job.wait(Milliseconds{59'900});
  CHECK(after.job.coordinator().job().round == 0);
  after.job.wait(Milliseconds{200});
  after.job.opens();
  CHECK(after.job.coordinator().job().round == 2);
}

TEST_CASE("a member that is lost while its claim is waited with does not count") {
  Before before;
  auto claims = claims_of(before);
  After after;
  after.claims("a", claims[1]);
  const LinkId b = after.claims("b", claims[2]);
  after.job.disconnects(b);
  after.claims("c", claims[3]);
  CHECK(after.job.coordinator().job().round == 0);
  after.claims("b", claims[2]);
  CHECK(after.job.coordinator().job().round == 2);
}

TEST_CASE("the claim of an older round makes a newcomer, in any order") {
  const bool old_one_first = GENERATE(false, true);
  CAPTURE(old_one_first);
  Before before;
  auto claims = claims_of(before);
  RoundClaim older = claims[1];
  for (const LinkId link : {2U, 3U}) {
    claims[link].round = 5;
    claims[link].node_count = 2;
    claims[link].node_rank = static_cast<int>(link) - 2;
  }
  older.node_rank = 0;
  After after;
  LinkId a = 0;
  if (old_one_first) a = after.claims("a", older);
  const LinkId b = after.claims("b", claims[2]);
  if (!old_one_first) a = after.claims("a", older);
  const LinkId c = after.claims("c", claims[3]);
  after.job.opens();
  CHECK(after.job.coordinator().job().round == 6);
  CHECK(after.job.node_rank(b) == 0);
  CHECK(after.job.node_rank(c) == 1);
  if (old_one_first) CHECK(after.job.node_rank(a) == 2);
}

TEST_CASE("a job that had ended well everywhere is not run again") {
  Before before;
  auto claims = claims_of(before);
  for (auto& [link, claim] : claims) claim.succeeded = true;
  SECTION("everywhere") {
    After after;
    const LinkId a = after.claims("a", claims[1]);
    after.claims("b", claims[2]);
    after.claims("c", claims[3]);
    const auto verdict = after.job.coordinator().job().verdict;
    REQUIRE(verdict);
    CHECK(verdict->kind == VerdictKind::success);
    CHECK(after.job.next<VerdictMessage>(a).kind == VerdictKind::success);
  }
  SECTION("everywhere but on one machine") {
    claims[2].succeeded = false;
    After after;
    for (const LinkId link : {1U, 2U, 3U}) after.claims(std::string(1, "-abc"[link]), claims[link]);
    CHECK_FALSE(after.job.coordinator().job().verdict);
    CHECK(after.job.coordinator().job().round == 2);
  }
}

TEST_CASE("without a restart left the loss of the coordinator ends the job, everywhere with that cause") {
  const Changed none{{"max_restarts", "0"}};
  Before before(none);
  auto claims = claims_of(before);
  After after(none);
  std::vector<LinkId> links;
  for (const LinkId link : {1U, 2U, 3U}) links.push_back(after.claims(std::string(1, "-abc"[link]), claims[link]));
  for (const LinkId link : links) {
    const VerdictMessage verdict = after.job.next<VerdictMessage>(link);
    CHECK(verdict.kind == VerdictKind::node_lost);
    CHECK(verdict.exit_code == 125);
    CHECK(verdict.why == "the coordinator of the round before was lost");
  }
}

TEST_CASE("a coordinator that hands over in order costs no restart") {
  const Changed none{{"max_restarts", "0"}};
  Before before(none);
  auto claims = claims_of(before);
  SECTION("all have been notified") {
    for (auto& [link, claim] : claims) claim.moved = true;
  }
  SECTION("one has been notified, and the others found the next coordinator first") { claims[2].moved = true; }
  After after(none);
  for (const LinkId link : {1U, 2U, 3U}) after.claims(std::string(1, "-abc"[link]), claims[link]);
  CHECK(after.job.coordinator().job().round == 2);
  CHECK(after.job.coordinator().job().budget.used() == 0);
}

TEST_CASE("what restarts have cost and which hosts are left out outlives the coordinator") {
  const Changed strict{{"max_restarts", "2"}, {"restart_window_ms", "60000"}, {"node_max_failures", "1"}};
  Before before(strict);
  before.job.fails(3, 2, 1);
  for (const LinkId link : {1U, 2U, 3U}) before.job.stops(link);  // c is excluded
  before.job.opens();
  before.job.forget_all();
  before.job.wait(Milliseconds{20'000});
  before.job.fails(2, 1, 1, true);
  before.job.stops(1);
  before.job.stops(2);  // so is b
  before.job.opens();
  const RoundClaim claim = before.claim_of(1);
  CHECK(claim.job_state == R"({"doublings":2,"failures":{"b":1,"c":1},"recent_ms":[20000,0],"restarts":2})");

  After after(strict);
  const LinkId b = after.claims("b", {});  // defines the settings before any claim
  const LinkId a = after.claims("a", claim);
  const VerdictMessage verdict = after.job.next<VerdictMessage>(a);
  CHECK(verdict.why == "the coordinator of the round before was lost; no restart is left");
  CHECK(verdict.restarts == 2);
  CHECK(after.job.has<VerdictMessage>(b));
}

TEST_CASE("a claim that makes no sense harms nothing") {
  const std::string memory = GENERATE("", "no json", "[1]", R"({"restarts":-1})", R"({"restarts":"many"})",
                                      R"({"recent_ms":[-5]})", R"({"failures":7})");
  CAPTURE(memory);
  After after;
  after.claims("a", {8, 4, 0, 1, memory, false, false});
  CHECK(after.job.coordinator().job().round == 5);
  CHECK(after.job.coordinator().job().budget.used() == 1);
}

TEST_CASE("a coordinator that gets the claim of a higher term refuses") {
  After after;
  const LinkId a = after.claims("a", {10, 1, 0, 1, "{}", false, false});
  CHECK(after.job.next<Refused>(a).kind == RefusalKind::moved);
  CHECK(after.job.closed(a));
}

TEST_CASE("members of a round that the coordinator does not know are waited for, new ones alone are not") {
  After after({}, 1, 4);
  SECTION("a new job") {
    after.claims("a", {});
    after.claims("b", {});
    after.job.wait(Milliseconds{10'000});  // then the last call begins
    after.job.wait(Milliseconds{30'000});
    CHECK(after.job.coordinator().job().round == 1);
  }
  SECTION("with all its places taken") {
    for (const char* host : {"a", "b", "c", "d"}) after.claims(host, {});
    CHECK(after.job.coordinator().job().round == 1);
  }
  SECTION("a member that waited beside a round claims its term") {
    Join spare = after.job.join_of("a");
    spare.claim.term = 7;
    after.job.joins(spare);
    for (const char* host : {"b", "c", "d"}) after.claims(host, {});
    after.job.wait(Milliseconds{18'000});
    CHECK(after.job.coordinator().job().round == 0);
    after.job.wait(Milliseconds{1'500});
    CHECK(after.job.coordinator().job().round == 1);
  }
}

TEST_CASE("restarts that a late claim knows of are not forgotten") {
  const Changed last_call{{"last_call_ms", "0"}, {"max_restarts", "2"}, {"node_max_failures", "2"}};
  After after(last_call, 1, 3);
  SECTION("one that comes beside a round of a job that nobody claimed") {
    const LinkId d = after.claims("d", {});
    after.job.wait(Milliseconds{10'500});
    after.job.opens();
    CHECK(after.job.next<Start>(d).ranks.restart_count == 0);
    const LinkId b = after.claims("b", {7, 5, 0, 1, R"({"restarts":2,"failures":{"c":2}})", false, false});
    after.job.wait(Milliseconds{1});
    after.job.stops(d);
    after.job.opens();
    for (const LinkId link : {d, b}) CHECK(after.job.next<Start>(link).ranks.restart_count == 2);
    CHECK(after.job.next<Refused>(after.claims("c", {})).why.find("is left out") != std::string::npos);
    // They do not come back, either.
    after.job.fails(b, 0, 1);
    after.job.stops(b);
    after.job.stops(d);
    CHECK(after.job.next<VerdictMessage>(b).restarts == 2);
  }
  SECTION("one that knows of fewer changes nothing") {
    after.claims("a", {8, 6, 0, 1, R"({"restarts":1})", false, true});
    after.job.opens();
    CHECK(after.job.next<Start>(1).ranks.restart_count == 1);
    after.claims("b", {7, 5, 0, 1, R"({"restarts":0})", false, false});
    CHECK(after.job.coordinator().job().budget.used() == 1);
  }
}

TEST_CASE("a new job without a lease waits for the other machines of the one before") {
  ScriptedJob job(2, 3, {{"last_call_ms", "0"}, {"grace_ms", "5000"}});
  const auto joins = [&](const std::string& host, int node_rank, int node_count) {
    Join join = job.join_of(host);
    join.claim = {0, 4, node_rank, node_count, "", false, false};
    return job.joins(join);
  };
  const auto round = [&] { return job.coordinator().job().round; };
  job.joins("a");  // its machine has lost its power, and it begins the job anew
  job.wait(Milliseconds{2'000});
  SECTION("which come") {
    const LinkId b = joins("b", 1, 3);
    CHECK(round() == 0);
    CHECK(job.next<Waiting>(b).waiting_for == "the other machines of the job before, or the end of its workers there");
    joins("c", 2, 3);
    CHECK(round() == 1);
  }
  SECTION("of which one has ended: until its workers have") {
    joins("b", 1, 3);
    // 3.5 s + 5 s + 1 s + an interval from the first JOIN
    job.wait(Milliseconds{8'499});
    CHECK(round() == 0);
    job.wait(Milliseconds{1});
    CHECK(round() == 1);
  }
  SECTION("of which one joins and goes: its workers have ended") {
    const LinkId c = joins("c", 2, 3);
    job.disconnects(c, "connection closed");
    joins("b", 1, 3);
    CHECK(round() == 1);
  }
  SECTION("which were only it and that of the old coordinator") {
    joins("b", 1, 2);
    CHECK(round() == 1);
  }
  SECTION("of which one joins another time: it counts once") {
    const LinkId b = joins("b", 1, 3);
    job.disconnects(b, "connection closed");
    joins("b", 1, 3);
    CHECK(round() == 0);
  }
}
