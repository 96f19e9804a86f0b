#include "voter.hpp"

#include <chrono>

#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using Ballot = VoteAnswer::Ballot;
using Kind = VoteRequest::Kind;
using std::chrono::seconds;

namespace {

constexpr Milliseconds ttl{5000};
const Voter::Time begin{seconds(1000)};
/// When it says what it says without a reservation.
const Voter::Time settled = begin + seconds(5);

VoteRequest request(Kind kind, std::uint64_t term, std::string candidate, std::string text = "") {
  VoteRequest made;
  made.kind = kind;
  made.number = 1;
  made.term = term;
  made.candidate = std::move(candidate);
  made.text = std::move(text);
  made.ttl_ms = 5000;
  return made;
}

}  // namespace

TEST_CASE("a voter stands by one candidate for the time to live") {
  Voter voter(7, "job", ttl, begin);
  CHECK(voter.ask(request(Kind::vote, 1, "a"), settled).ballot == Ballot::yes);
  CHECK(voter.ask(request(Kind::vote, 2, "b"), settled + seconds(4)).ballot == Ballot::no);
  // Once more for who has it: from now on.
  CHECK(voter.ask(request(Kind::vote, 1, "a"), settled + seconds(4)).ballot == Ballot::yes);
  CHECK(voter.ask(request(Kind::vote, 2, "b"), settled + seconds(8)).ballot == Ballot::no);
  CHECK(voter.ask(request(Kind::vote, 2, "b"), settled + seconds(9)).ballot == Ballot::yes);
}

TEST_CASE("a voter votes once in a term, and for none below one that has been led in") {
  Voter voter(7, "job", ttl, begin);
  CHECK(voter.ask(request(Kind::vote, 4, "a"), settled).ballot == Ballot::yes);
  (void)voter.ask(request(Kind::release, 4, "a"), settled);
  CHECK(voter.ask(request(Kind::vote, 4, "b"), settled).ballot == Ballot::no);
  CHECK(voter.ask(request(Kind::vote, 3, "b"), settled).ballot == Ballot::no);
  auto enters = request(Kind::enter, 9, "c", "job");
  CHECK(voter.ask(enters, settled).seen == 9);
  CHECK(voter.ask(request(Kind::vote, 9, "b"), settled).ballot == Ballot::no);
  CHECK(voter.ask(request(Kind::vote, 10, "b"), settled).ballot == Ballot::yes);
}

TEST_CASE("a voter that has begun lately does not know whom it voted for before") {
  Voter voter(7, "job", ttl, begin);
  CHECK(voter.ask(request(Kind::vote, 1, "a"), settled - Milliseconds(1)).ballot == Ballot::fresh);
  CHECK(voter.ask(request(Kind::vote, 1, "a"), settled).ballot == Ballot::yes);
}

TEST_CASE("a voter tells who leads, and where, until the lease is over, given back or taken away") {
  Voter voter(7, "job", ttl, begin);
  (void)voter.ask(request(Kind::vote, 1, "a"), settled);
  CHECK(voter.state(settled).leader_term == 0);  // it may not have won
  CHECK(voter.ask(request(Kind::hold, 1, "a", "here"), settled).ballot == Ballot::yes);
  CHECK(voter.state(settled).leader_term == 1);
  CHECK(voter.state(settled).leader_address == "here");
  CHECK(voter.next_change(settled) == settled + seconds(5));
  CHECK(voter.state(settled + seconds(5)).leader_term == 0);
  SECTION("given back") {
    (void)voter.ask(request(Kind::release, 1, "b"), settled);
    CHECK(voter.state(settled).leader_term == 1);  // not by another
    (void)voter.ask(request(Kind::release, 1, "a"), settled);
    CHECK(voter.state(settled).leader_term == 0);
  }
  SECTION("taken away") {
    (void)voter.ask(request(Kind::depose, 1, "b"), settled);
    CHECK(voter.state(settled).leader_term == 0);
    CHECK(voter.ask(request(Kind::hold, 1, "a", "here"), settled).ballot == Ballot::no);
  }
  SECTION("its process has ended") {
    voter.ended("b");
    CHECK(voter.state(settled).leader_term == 1);
    voter.ended("a");
    CHECK(voter.state(settled).leader_term == 0);
  }
  SECTION("one that did not vote for it follows") {
    Voter other(8, "job", ttl, begin);
    CHECK(other.ask(request(Kind::hold, 1, "a", "here"), begin).ballot == Ballot::yes);
    CHECK(other.state(begin).leader_term == 1);
    CHECK(other.ask(request(Kind::vote, 2, "b"), begin + seconds(4)).ballot == Ballot::no);
    // And knows from then on that there was no other.
    other.ended("a");
    CHECK(other.ask(request(Kind::vote, 2, "b"), begin + seconds(4)).ballot == Ballot::yes);
  }
}

TEST_CASE("a verdict is shown once more than half have it, and a candidate hears of it before") {
  Voter voter(7, "job", ttl, begin);
  CHECK(voter.ask(request(Kind::record, 1, "a", "well"), settled).ballot == Ballot::no);
  (void)voter.ask(request(Kind::vote, 1, "a"), settled);
  CHECK(voter.ask(request(Kind::record, 1, "a", "well"), settled).ballot == Ballot::yes);
  CHECK(voter.state(settled).verdict.empty());
  const auto later = settled + seconds(6);
  CHECK(voter.ask(request(Kind::vote, 2, "b"), later).verdict == "well");
  SECTION("the next leader did not hear of it: it was not recorded by more than half") {
    CHECK(voter.ask(request(Kind::record, 2, "b", "badly"), later).ballot == Ballot::yes);
    // Any agent that knows it says so.
    auto sure = request(Kind::record, 0, "c", "badly");
    sure.sure = true;
    (void)voter.ask(sure, later);
    CHECK(voter.state(later).verdict == "badly");
    CHECK(voter.ask(request(Kind::record, 2, "b", "well"), later).ballot == Ballot::no);
  }
}

TEST_CASE("agents of another job, or with another time to live, are told so") {
  Voter voter(7, "job", ttl, begin);
  const auto other = voter.ask(request(Kind::enter, 0, "a", "another"), begin);
  CHECK(other.ballot == Ballot::other_job);
  CHECK(other.verdict == "votes for the job job, not another");
  auto longer = request(Kind::enter, 0, "a", "job");
  longer.ttl_ms = 9000;
  CHECK(voter.ask(longer, begin).verdict == "has a --lease-ttl of 5000 ms, not 9000 ms");
}

TEST_CASE("what agents and voters say to each other is read as it was written") {
  auto asked = request(Kind::record, 77, "a", "text");
  asked.sure = true;
  CHECK(decode_vote_request(encode(asked)).value() == asked);
  VoteAnswer answer;
  answer.number = 3;
  answer.ballot = Ballot::fresh;
  answer.voter = 1ULL << 63U;
  answer.voted = 8;
  answer.seen = 6;
  answer.leader_term = 6;
  answer.leader_address = "10.0.0.1:29400";
  answer.verdict = "well";
  answer.sure = true;
  CHECK(decode_vote_answer(encode(answer)).value() == answer);
  const std::string whole = encode(answer);
  for (std::size_t size = 0; size < whole.size(); ++size) CHECK(!decode_vote_answer(whole.substr(0, size)));
  const std::string all = encode(asked);
  for (std::size_t size = 0; size < all.size(); ++size) CHECK(!decode_vote_request(all.substr(0, size)));
}
