// A question to all machines: who is asked, what comes back, and what bounds it.

#include "survey.hpp"

#include "ddrun/test/catch.hpp"
#include "scripted_job.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using ddrun::test::ScriptedJob;

namespace {

using Texts = std::vector<std::string>;

constexpr std::size_t kibibyte = 1024;

/// Three nodes with workers; "a" (link 1) runs the coordinator, and a spare waits beside them (link 4).
struct ThreeNodes {
  ThreeNodes() {
    job.joins(job.own_join_of("a"));
    for (const char* host : {"b", "c", "spare"}) job.joins(host);
    job.opens();
    job.forget_all();
  }
  void asks(LinkId link, std::uint32_t number, const std::string& options = "", bool is_for_stop = false) {
    job.sends(link, Ask{number, stacks_question, options, is_for_stop});
  }
  void answers(LinkId link, const std::string& part, bool last = true) {
    job.sends(link, Stacks{number_of(link), last, part});
  }
  std::uint32_t number_of(LinkId link) {
    if (job.has<Look>(link)) numbers[link] = job.next<Look>(link).number;
    return numbers[link];
  }
  /// The pages of this number that came since: "1:text" by node rank, and at the end "end" with what is missing.
  Texts pages(LinkId link, std::uint32_t number) {
    Texts texts;
    for (const auto& message : job.received(link)) {
      if (const auto* look = std::get_if<Look>(&message)) numbers[link] = look->number;
      const auto* page = std::get_if<Page>(&message);
      if (page == nullptr || page->number != number) continue;
      texts.push_back(page->node_rank < 0 ? "end" : concat(page->node_rank, ":", page->part, page->last ? "" : "..."));
      for (const std::string& missing : page->missing) texts.back() += concat("; ", missing);
    }
    return texts;
  }

  ScriptedJob job{3, 3};
  std::map<LinkId, std::uint32_t> numbers;
};

}  // namespace

TEST_CASE("a question reaches the members with workers, and their answers all that ask") {
  ThreeNodes nodes;
  nodes.asks(2, 7, "x");
  for (const LinkId link : {1, 2, 3}) CHECK(nodes.job.next<Look>(link).options == "x");
  CHECK_FALSE(nodes.job.has<Look>(4));
  nodes.asks(4, 9, "x");  // a spare may ask, too
  CHECK_FALSE(nodes.job.has<Look>(1));
  const std::uint32_t number = 1;
  nodes.job.sends(1, Stacks{number, false, "one"});
  nodes.job.sends(3, Stacks{number, true, "three"});
  nodes.job.sends(3, Stacks{number, true, "again"});        // ignored, as its answer is complete
  nodes.job.sends(2, Stacks{number + 1, true, "another"});  // ignored, of no question
  nodes.job.sends(1, Stacks{number, true, "more"});
  nodes.asks(3, 2, "x");  // late, and gets all the same
  nodes.job.sends(2, Stacks{number, true, "two"});
  const Texts all{"0:one...", "2:three", "0:more", "1:two", "end"};
  CHECK(nodes.pages(2, 7) == all);
  CHECK(nodes.pages(4, 9) == all);
  CHECK(nodes.pages(3, 2) == all);
  CHECK(nodes.job.received(1).empty());
  nodes.asks(1, 1);
  CHECK(nodes.job.next<Look>(1).number == number + 1);
}

TEST_CASE("an agent is sent no more than one part beyond what it has confirmed, and sends none before it may") {
  ThreeNodes nodes;
  nodes.asks(2, 7);
  nodes.job.forget_counts();
  const std::string part(32 * kibibyte, 'x');
  const std::size_t ping = FromCoordinator(Ping{}).index(), page = FromCoordinator(Page{}).index();
  nodes.answers(1, part, false);
  CHECK(nodes.job.counts(1)[ping] == 1);
  CHECK(nodes.job.counts(2)[page] == 1);
  nodes.job.goes_silent(2);
  nodes.answers(1, part, false);
  CHECK(nodes.job.counts(2)[page] == 2);
  nodes.answers(1, part, false);
  nodes.answers(3, "small");
  CHECK(nodes.job.counts(2)[page] == 2);
  nodes.job.answers_again(2);
  nodes.job.wait(Milliseconds{1'000});  // the next ping
  CHECK(nodes.job.counts(2)[page] == 4);
  nodes.answers(1, part + "x", false);  // longer than a part may be
  nodes.answers(1, part);               // ignored
  nodes.answers(2, "");
  const Texts end = nodes.pages(2, 7);
  CHECK(end.back() == "end; a: left out, the answers of all machines have more than 4 MiB");
}

TEST_CASE("what an agent may be sent is of all its questions together") {
  ThreeNodes nodes;
  const std::size_t page = FromCoordinator(Page{}).index();
  nodes.job.goes_silent(2);
  nodes.asks(2, 7);
  nodes.asks(2, 8);
  nodes.job.forget_counts();
  nodes.answers(1, std::string(32 * kibibyte, 'x'));
  for (const LinkId link : {2, 3}) nodes.answers(link, "");
  nodes.job.wait(Milliseconds{500});
  CHECK(nodes.job.counts(2)[page] == 1);
  nodes.job.answers_again(2);
  nodes.job.wait(Milliseconds{1'500});
  CHECK(nodes.job.counts(2)[page] == 2 * 4);  // three answers and the end, for each
}

TEST_CASE("an answer keeps the node rank of the round in which it was asked for") {
  ScriptedJob job{2, 3};
  for (const char* host : {"a", "b", "c"}) job.joins(host);
  job.opens();
  job.forget_all();
  job.sends(1, Ask{1, stacks_question});
  job.sends(2, Stacks{1, true, "b"});
  job.sends(3, Stacks{1, false, "c, "});
  job.disconnects(2);
  job.stops(1);
  job.stops(3);
  job.opens();
  REQUIRE(job.next<Start>(3).ranks.node_rank == 1);
  job.sends(3, Stacks{1, true, "and more"});
  std::vector<std::pair<int, std::string>> parts;
  for (const auto& message : job.received(1)) {
    if (const auto* page = std::get_if<Page>(&message)) parts.emplace_back(page->node_rank, page->host);
  }
  CHECK(parts == std::vector<std::pair<int, std::string>>{{1, "b"}, {2, "c"}, {2, "c"}});
}

TEST_CASE("all answers together have 4 MiB at most; what is left out is named by machine") {
  ThreeNodes nodes;
  nodes.asks(2, 7);
  const std::string part(32 * kibibyte, 'x');
  for (int i = 0; i < 128; ++i) nodes.answers(1, part, false);
  nodes.answers(1, "x");
  nodes.answers(3, "");
  nodes.answers(2, "");
  const Texts texts = nodes.pages(2, 7);
  CHECK(texts.size() == 128 + 3);
  CHECK(texts.back() == "end; a: left out, the answers of all machines have more than 4 MiB");
}

TEST_CASE("machines that do not answer in time, or are lost, are named") {
  ThreeNodes nodes;
  nodes.asks(1, 7);
  nodes.answers(1, "one");
  nodes.job.wait(Milliseconds{2'000});
  CHECK(nodes.pages(1, 7) == Texts{"0:one"});
  nodes.job.disconnects(2);
  nodes.job.wait(Milliseconds{1'100});
  const Texts end = nodes.pages(1, 7);
  REQUIRE(end.size() == 1);
  CHECK(end[0].starts_with("end; "));
  CHECK(end[0].find("b: was lost") != end[0].npos);
  CHECK(end[0].find("c: no answer within 3.0 s") != end[0].npos);
}

TEST_CASE("an answer that an agent has not got in time is named, too") {
  ThreeNodes nodes;
  nodes.asks(2, 7);
  nodes.job.goes_silent(2);
  nodes.answers(1, "one");
  nodes.answers(3, "three");
  nodes.job.wait(Milliseconds{3'100});
  CHECK(nodes.pages(2, 7) == Texts{"0:one", "end; b: no answer within 3.0 s; c: its answer did not arrive in time"});
}

TEST_CASE("another question waits until the one under way is over, and an asker that is lost ends its own") {
  ThreeNodes nodes;
  nodes.asks(2, 7, "x");
  nodes.asks(3, 8, "y");
  for (const LinkId link : {1, 2, 3}) nodes.answers(link, "x");
  CHECK(nodes.pages(2, 7).back() == "end");
  for (const LinkId link : {1, 2, 3}) CHECK(nodes.number_of(link) == 2);
  nodes.asks(1, 9, "z");
  nodes.job.disconnects(3);
  CHECK(nodes.number_of(1) == 3);
  for (std::uint32_t number = 10; number < 40; ++number) nodes.asks(1, number, concat(number));
  nodes.job.wait(Milliseconds{60'000});
  CHECK(nodes.pages(1, 25).empty());  // one agent asks 16 questions at once
}

TEST_CASE("before a stop the agent that reports to the user gets the answers, and the one that asks their end") {
  ThreeNodes nodes;
  nodes.asks(2, 7, "stop", true);
  nodes.asks(3, 8, "stop", true);
  for (const LinkId link : {1, 2, 3}) nodes.answers(link, concat(link));
  CHECK(nodes.pages(1, 0) == Texts{"0:1", "1:2", "2:3", "end"});
  CHECK(nodes.pages(2, 7) == Texts{"end"});
  CHECK(nodes.pages(3, 8) == Texts{"end"});
}

TEST_CASE("a rank that waited in vain makes STOP ask where the others are, and all hear who held them up") {
  ThreeNodes nodes;
  ScriptedJob& job = nodes.job;
  Failed failed{job.coordinator().job().round, 1, 0, 4711, false, 1};
  SECTION("not after another failure") {
    job.sends(2, failed);
    CHECK(job.next<Stop>(3).look == 0);
    return;
  }
  failed.waited = true;
  nodes.asks(3, 7);  // ends with what there is
  job.sends(2, failed);
  CHECK(nodes.pages(3, 7).empty());
  const Stop stop = job.next<Stop>(1);
  CHECK(stop.look == 2);
  CHECK(stop.awaits_page);
  CHECK_FALSE(job.has<Look>(1));
  for (const LinkId link : {1, 2, 3}) job.sends(link, Stacks{stop.look, true, concat(link)});
  CHECK(nodes.pages(1, 0) == Texts{"0:1", "1:2", "2:3", "end"});
  job.stops(2, R"({"rank":1})");
  job.sends(1, Stopped{job.coordinator().job().round, {}, "", {R"({"failed_first":{"rank":2}})", "c", -1}});
  job.stops(3);
  for (const LinkId link : {1, 2, 3, 4}) {
    const auto verdict = job.next<VerdictMessage>(link);
    CHECK(verdict.failed_first.failure == R"({"failed_first":{"rank":2}})");
    CHECK(verdict.failed_first.host == "c");
    CHECK(verdict.rank == 1);
  }
}
