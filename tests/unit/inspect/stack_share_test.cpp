// The page of several machines, from what each sends of its ranks.

#include <nlohmann/json.hpp>

#include "ddrun/base/text.hpp"
#include "ddrun/inspect/stack_page.hpp"
#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::inspect;

namespace {

RankStacks rank_in(int rank, const std::string& function, std::int64_t step, bool on_socket = false) {
  RankStacks stacks;
  stacks.rank = rank;
  stacks.pid = 4700 + rank;
  stacks.program = "python3";
  stacks.cpu = 0.5;
  ThreadStack& main = stacks.threads.emplace_back();
  main.state = 'S';
  main.doing = on_socket ? std::string("receives from 10.0.0.9:1") : "sleeps";
  main.on_socket = on_socket;
  main.python = {{function, "/job/train.py", 7, {{"step", step}, {"epoch", 1}}}, {"main", "/job/train.py", 19, {}}};
  const auto libc = std::make_shared<const Module>(Module{"/lib/libc.so.6", stacks.pid, 1, 1});
  main.native = {{libc, 0x10, "recv"}, {nullptr, 0x20, ""}};
  return stacks;
}

std::string share(std::vector<RankStacks> ranks, std::vector<RankName> gave_up = {}, bool all_threads = false,
                  std::size_t max_bytes = 1U << 20U) {
  const int base_rank = ranks.empty() ? 0 : ranks.front().rank;
  return share_of(gave_up, base_rank, share_text({"", {}, std::move(ranks)}, all_threads, max_bytes));
}

StackPage whole_page() {
  StackPage page;
  page.is_whole_job = true;
  return page;
}

/// Two ranks of h1 and one of h2 wait; the other one of h2 sleeps.
StackPage two_machines() {
  StackPage page = whole_page();
  REQUIRE(add_share(page, share({rank_in(0, "barrier", 3, true), rank_in(1, "barrier", 4, true)}), "h1"));
  REQUIRE(add_share(page, share({rank_in(2, "barrier", 3, true), rank_in(3, "load", 3)}), "h2"));
  return page;
}

}  // namespace

TEST_CASE("equal stacks are sent once, and shown once") {
  StackPage page = two_machines();
  REQUIRE(page.ranks.size() == 3);
  CHECK(page.ranks[0].also == std::vector{1});
  CHECK(page.ranks[0].host == "h1");
  CHECK(page.ranks[0].cpu == 0.5);
  merge_equal(page);
  REQUIRE(page.ranks.size() == 2);
  CHECK(page.ranks[0].also == std::vector{1, 2});
  CHECK(short_text(page, "/job") ==
        "ranks 0-2 wait for rank 3 on h2: load (train.py:7), sleeps\n"
        "where the ranks of the job are:\n"
        "  rank 3 on h2 (pid 4703): sleeps, 50 % CPU\n"
        "    load                         train.py:7  step=3  epoch=1\n"
        "    main                         train.py:19\n"
        "    native: recv\n"
        "  ranks 0-2: receives from 10.0.0.9:1, 50 % CPU each\n"
        "    barrier                      train.py:7  epoch=1\n"
        "    main                         train.py:19\n"
        "    native: recv\n");
  const HeldUp culprits = find_culprits(page, 4);
  CHECK(culprits.ranks == std::vector{RankName{"", 3}});
  CHECK(culprits.host == "h2");
  CHECK(culprits.pid == 4703);
  CHECK(culprits.local_rank == 1);
}

TEST_CASE("what a machine without workers waits for is a note of the page") {
  StackPage page = two_machines();
  StackPage own;
  own.notes = {"imports torch (--preload)"};
  REQUIRE(add_share(page, share_of({}, 4, share_text(own, false, 1U << 20U)), "h3"));
  CHECK(page.notes == std::vector<std::string>{"h3: imports torch (--preload)"});
  CHECK(short_text(page, "/job").ends_with("\n  (h3: imports torch (--preload))\n"));
}

TEST_CASE("ranks that say that they waited in vain are no culprits, on any machine") {
  StackPage page = whole_page();
  REQUIRE(add_share(page, share({rank_in(0, "barrier", 3, true), rank_in(1, "raise_error", 3)}, {{"", 1}}), "h1"));
  REQUIRE(add_share(page, share({rank_in(2, "load", 3), rank_in(3, "barrier", 3, true)}), "h2"));
  merge_equal(page);
  CHECK(find_culprits(page, 4).ranks == std::vector{RankName{"", 2}});
  CHECK(short_text(page, "").starts_with("ranks 0,3 wait for rank 2 on h2: load (train.py:7), sleeps\n"));
  page.gave_up.clear();
  CHECK(short_text(page, "").starts_with("ranks 0,3 wait for rank 1 on h1: raise_error"));
}

TEST_CASE("a page may be about some ranks") {
  StackPage page = two_machines();
  keep_ranks(page, [](const RankName& rank) { return rank.rank == 1; });
  REQUIRE(page.ranks.size() == 1);
  CHECK(page.ranks[0].rank == 1);
  CHECK(page.ranks[0].pid == 0);  // not sent
}

TEST_CASE("all threads of each rank can be sent, too") {
  std::vector<RankStacks> ranks{rank_in(0, "barrier", 3), rank_in(1, "barrier", 3)};
  for (RankStacks& rank : ranks) rank.threads.resize(3, rank.threads[0]);
  ranks[1].awaited = {rank_in(1, "child", 0)};
  StackPage page = whole_page();
  REQUIRE(add_share(page, share(ranks, {}, true), "h1"));
  REQUIRE(page.ranks.size() == 2);
  CHECK(page.ranks[1].threads.size() == 3);
  CHECK(page.ranks[1].awaited.at(0).threads.at(0).python[0].function == "child");
  const auto json = nlohmann::json::parse(json_text(page));
  CHECK(json["ranks"][1]["host"] == "h1");
  CHECK(json["ranks"][1]["threads"].size() == 3);
}

TEST_CASE("what is too much is left out and counted: other threads first, then ranks") {
  std::vector<RankStacks> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.push_back(rank_in(rank, concat("f", rank), 3));
    ranks.back().threads.resize(100, ranks.back().threads[0]);
  }
  const std::size_t one = share({ranks[0]}, {}, true).size();
  StackPage page = whole_page();
  REQUIRE(add_share(page, share(ranks, {}, true, one + one / 50), "h1"));
  REQUIRE(page.ranks.size() == 2);
  CHECK(page.ranks[0].threads.size() == 100);
  CHECK(page.ranks[1].threads.size() == 1);
  CHECK(page.ranks[1].threads_left_out == 99);
  CHECK(page.notes == std::vector<std::string>{"h1: 2 ranks left out for their size"});
  // A deep stack that is sent for several ranks.
  RankStacks deep = rank_in(0, "f", 3);
  deep.threads[0].python.resize(500, deep.threads[0].python[0]);
  page = whole_page();
  REQUIRE(add_share(page, share({deep}), "h1"));
  CHECK(page.ranks[0].threads[0].python.size() == 24);
  CHECK(page.ranks[0].threads[0].python_left_out == 476);
}

TEST_CASE("a share that is cut, or of another program, is refused") {
  const std::string whole = share({rank_in(0, "f", 3)});
  for (std::size_t size = 0; size < whole.size(); ++size) {
    StackPage page = whole_page();
    if (add_share(page, whole.substr(0, size), "h1")) FAIL("cut to " << size << " bytes it is read all the same");
  }
  StackPage page = whole_page();
  CHECK_FALSE(add_share(page, std::string(100, '\xff'), "h1"));
  CHECK(page.ranks.empty());
}
