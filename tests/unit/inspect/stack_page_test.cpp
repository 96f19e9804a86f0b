#include "ddrun/inspect/stack_page.hpp"

#include <nlohmann/json.hpp>

#include "ddrun/test/catch.hpp"

using namespace ddrun::inspect;

namespace {

const std::string packages = "/env/lib/python3.11/site-packages/";

RankStacks rank_at(int rank, std::vector<PythonFrame> python, std::string doing) {
  RankStacks stacks;
  stacks.rank = rank;
  stacks.pid = 4700 + rank;
  stacks.program = "python3";
  ThreadStack& main = stacks.threads.emplace_back();
  main.tid = stacks.pid;
  main.name = "python3";
  main.state = 'S';
  main.doing = std::move(doing);
  main.python = std::move(python);
  return stacks;
}

RankStacks sleeping(int rank) {
  auto stacks =
      rank_at(rank, {{"load_batch", "/job/train.py", 7, {{"step", 3}}}, {"main", "/job/train.py", 19, {}}}, "sleeps");
  const auto libc = std::make_shared<const Module>(Module{"/lib/libc.so.6", stacks.pid, 1, 1});
  stacks.threads[0].native = {
      {libc, 0x10, "clock_nanosleep"}, {libc, 0x20, "time_sleep"}, {libc, 0x30, "_PyEval_EvalFrameDefault"}};
  return stacks;
}

RankStacks reducing(int rank) {
  return rank_at(
      rank,
      {{"all_reduce", packages + "torch/distributed/distributed_c10d.py", 3166, {}}, {"main", "/job/train.py", 18, {}}},
      "waits for another thread (futex)");
}

std::vector<int> first_group(const StackPage& page) {
  std::vector<int> ranks;
  const auto groups = group_ranks(page);
  for (const RankStacks* rank : groups.at(0).ranks) ranks.push_back(rank->rank);
  return ranks;
}

}  // namespace

TEST_CASE("the page begins with the rank that the others wait for") {
  const StackPage page{"at SIGQUIT", {}, {reducing(0), reducing(1), sleeping(2), reducing(3)}};
  CHECK(short_text(page, "/job") ==
        "where the ranks of this machine are, at SIGQUIT:\n"
        "  rank 2 (pid 4702): sleeps, 0 % CPU\n"
        "    load_batch                   train.py:7  step=3\n"
        "    main                         train.py:19\n"
        "    native: clock_nanosleep < time_sleep\n"
        "  ranks 0,1,3: waits for other ranks, 0 % CPU each\n"
        "    all_reduce                   torch/distributed/distributed_c10d.py:3166\n"
        "    main                         train.py:18\n");
  const HeldUp culprits = find_culprits(page, 4);
  CHECK(culprits.ranks == std::vector{2});
  CHECK(culprits.place == "load_batch (train.py:7), sleeps");
}

TEST_CASE("of a group's numbers those are shown that all its ranks have") {
  StackPage page{"", {}, {sleeping(0), sleeping(1)}};
  page.ranks[0].threads[0].python[0].numbers = {{"step", 3}, {"rank", 0}};
  page.ranks[1].threads[0].python[0].numbers = {{"rank", 1}, {"step", 3}};
  CHECK(short_text(page, "/job").find("train.py:7  step=3\n") != std::string::npos);
}

TEST_CASE("a stopped rank comes first, also if it was stopped in a collective") {
  StackPage page{"", {}, {reducing(0), reducing(1), reducing(2)}};
  page.ranks[1].threads[0].state = 'T';
  CHECK(first_group(page) == std::vector{1});
  CHECK(find_culprits(page, 3).ranks == std::vector{1});
}

TEST_CASE("of ranks that all wait the smaller group comes first") {
  StackPage page{"", {}, {reducing(0), reducing(1), reducing(2)}};
  page.ranks[2].threads[0].python[0].function = "barrier";
  CHECK(first_group(page) == std::vector{2});
  CHECK(find_culprits(page, 3).ranks == std::vector{2});
  page.ranks.pop_back();
  CHECK(find_culprits(page, 3).ranks.empty());
}

TEST_CASE("without a communication library who waits on a socket waits") {
  StackPage page{"", {}, {sleeping(0), sleeping(1), sleeping(2)}};
  for (int i : {0, 1}) {
    page.ranks[static_cast<std::size_t>(i)].threads[0].on_socket = true;
    page.ranks[static_cast<std::size_t>(i)].threads[0].python[0].function = "barrier";
  }
  CHECK(first_group(page) == std::vector{2});
  // It reads from a file server while the others are in a collective.
  page = {"", {}, {reducing(0), reducing(1), sleeping(2)}};
  page.ranks[2].threads[0].on_socket = true;
  CHECK(first_group(page) == std::vector{2});
}

TEST_CASE("ranks that are at work are no culprits of a rank that timed out") {
  const StackPage page{"", {}, {sleeping(1), sleeping(2), sleeping(3)}};
  CHECK(find_culprits(page, 4).ranks.empty());
  CHECK(find_culprits({"", {}, {sleeping(1)}}, 2).ranks == std::vector{1});
  CHECK(find_culprits({}, 2).ranks.empty());
}

TEST_CASE("a program without Python shows its functions, or file and address") {
  StackPage page{"", {}, {rank_at(0, {}, "computes")}};
  const auto program = std::make_shared<const Module>(Module{"/job/train", 1, 1, 1});
  page.ranks[0].threads[0].native = {{program, 0x1234, "spin()"}, {program, 0x5678, ""}, {nullptr, 0x7f00, ""}};
  page.ranks[0].cpu = 0.998;
  CHECK(short_text(page, "") ==
        "where the ranks of this machine are:\n"
        "  rank 0 (pid 4700): computes, 100 % CPU\n"
        "    spin()                       train\n"
        "    train+0x5678\n"
        "    0x7f00\n");
}

TEST_CASE("what was not read is said") {
  StackPage page{"", {}, {sleeping(0), {}, {}}};
  page.ranks[0].note = "Python 3.10: native frames only";
  page.ranks[1].rank = 1;
  page.ranks[2].rank = 2;
  page.ranks[2].note = "no stack: not read within 1.5 s";
  const std::string text = short_text(page, "/job");
  CHECK(text.find("(Python 3.10: native frames only)\n") != std::string::npos);
  CHECK(text.find("  rank 1: has ended\n") != std::string::npos);
  CHECK(text.find("  rank 2: no stack: not read within 1.5 s\n") != std::string::npos);
}

TEST_CASE("a page is bounded, its file has everything") {
  StackPage page;
  for (int rank = 0; rank < 30; ++rank) {
    std::vector<PythonFrame> frames;
    for (int depth = 0; depth < 100; ++depth) frames.push_back({"f", "/job/a.py", rank * 1000 + depth, {}});
    page.ranks.push_back(rank_at(rank, std::move(frames), "sleeps"));
  }
  const auto lines_of = [](const std::string& text) { return std::count(text.begin(), text.end(), '\n'); };
  const std::string text = short_text(page, "/job");
  CHECK(lines_of(text) == 1 + 10 * (1 + 20) + 1);
  CHECK(text.find("    ... 81 frames\n") != std::string::npos);
  CHECK(text.find("a.py:13\n") == std::string::npos);
  CHECK(text.find("a.py:99\n") != std::string::npos);
  CHECK(text.ends_with("  and 20 more groups of ranks\n"));
  CHECK(lines_of(full_text(page)) > 2 * 30 * 100);
}

TEST_CASE("text of a process cannot imitate lines or obey a terminal") {
  StackPage page{"", {}, {rank_at(0, {{"f\n\033[2Jddrun: error: x", "/a\tb", 1, {}}}, "sleeps")}};
  for (const std::string& text : {short_text(page, ""), full_text(page)}) {
    CHECK(text.find('\033') == std::string::npos);
    CHECK(text.find("\nddrun") == std::string::npos);
  }
  CHECK(json_text(page).find('\033') == std::string::npos);
}

TEST_CASE("the page as JSON") {
  StackPage page{
      "at SIGQUIT", std::chrono::system_clock::time_point(std::chrono::seconds(5)), {reducing(0), sleeping(1)}};
  page.ranks[1].child = 4711;
  const auto json = nlohmann::json::parse(json_text(page));
  CHECK(json["time_us"] == 5'000'000);
  CHECK(json["groups"][0]["ranks"] == std::vector{1});
  CHECK(json["groups"][0]["stance"] == "apart");
  CHECK(json["groups"][1]["stance"] == "waits");
  const auto& rank = json["ranks"][1];
  CHECK(rank["child"] == 4711);
  CHECK(rank["threads"][0]["python"][0]["numbers"]["step"] == 3);
  CHECK(rank["threads"][0]["native"][0]["function"] == "clock_nanosleep");
  CHECK(rank["threads"][0]["native"][0]["module"] == "/lib/libc.so.6");
}
