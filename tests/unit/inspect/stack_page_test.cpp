#include "ddrun/inspect/stack_page.hpp"

#include <nlohmann/json.hpp>

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"

using namespace ddrun;
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
        "ranks 0,1,3 wait for rank 2: load_batch (train.py:7), sleeps\n"
        "where the ranks of this machine are, at SIGQUIT:\n"
        "  rank 2 (pid 4702): sleeps, 0 % CPU\n"
        "    load_batch                   train.py:7  step=3\n"
        "    main                         train.py:19\n"
        "    native: clock_nanosleep < time_sleep\n"
        "  ranks 0,1,3: waits for other ranks, 0 % CPU each\n"
        "    all_reduce                   torch/distributed/distributed_c10d.py:3166\n"
        "    main                         train.py:18\n");
  const HeldUp culprits = find_culprits(page, 4);
  CHECK(culprits.ranks == std::vector{RankName{"", 2}});
  CHECK(culprits.why == "held up the others: load_batch (train.py:7), sleeps");
}

TEST_CASE("frames of a checkout of PyTorch are not the program's") {
  StackPage page{"", {}, {reducing(0), reducing(1), reducing(2)}};
  page.ranks[0].threads[0].python = {{"w", "/src/pytorch/torch/_ops.py", 3, {}},
                                     {"barrier", "/src/pytorch/torch/distributed/distributed_c10d.py", 5, {}},
                                     {"train_step", "/job/c10.py", 13, {}}};
  CHECK(find_culprits(page, 3).why == "is in barrier (c10.py:13), ranks 1,2 in all_reduce (train.py:18)");
}

TEST_CASE("without names of functions there is no culprit, and no verdict") {
  StackPage page{"", {}, {reducing(0), reducing(1), sleeping(2)}};
  page.is_named = false;
  CHECK(find_culprits(page, 3).ranks.empty());
  CHECK(short_text(page, "").starts_with("where the ranks"));
}

TEST_CASE("names that are not ASCII are as wide as others") {
  const StackPage page{"", {}, {rank_at(0, {{"A<…>", "/job/a.py", 1, {}}, {"abcd", "/job/a.py", 2, {}}}, "sleeps")}};
  const std::string blanks(25, ' ');
  CHECK(short_text(page, "/job").find(concat("A<…>", blanks, "a.py:1\n    abcd", blanks, "a.py:2\n")) !=
        std::string::npos);
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
  CHECK(find_culprits(page, 3).ranks == std::vector{RankName{"", 1}});
}

namespace {

/// In this function of PyTorch, called from this line.
RankStacks in_collective(int rank, std::string function, int line) {
  auto stacks = reducing(rank);
  stacks.threads[0].python[0].function = std::move(function);
  stacks.threads[0].python[1].line = line;
  return stacks;
}

std::string first_line(const StackPage& page) {
  const std::string text = short_text(page, "");
  return text.substr(0, text.find('\n'));
}
constexpr const char* no_verdict = "where the ranks of this machine are:";

}  // namespace

TEST_CASE("of ranks that all wait those in another collective are named, and blamed by a majority of the world") {
  StackPage page{"", {}, {reducing(0), in_collective(1, "barrier", 31), reducing(2), reducing(3)}};
  CHECK(first_group(page) == std::vector{1});
  CHECK(first_line(page) == "rank 1 is in barrier (train.py:31), ranks 0,2,3 in all_reduce (train.py:18)");
  CHECK(find_culprits(page, 4).ranks == std::vector{RankName{"", 1}});
  CHECK(find_culprits(page, 4).why == "is in barrier (train.py:31), ranks 0,2,3 in all_reduce (train.py:18)");
  CHECK(find_culprits(page, 6).ranks.empty());
  page.ranks[0] = in_collective(0, "barrier", 31);
  CHECK(first_line(page) == "ranks 0,1 are in barrier (train.py:31), ranks 2,3 in all_reduce (train.py:18)");
  CHECK(find_culprits(page, 4).ranks.empty());
  CHECK(short_text(page, "").find("in all_reduce (train.py:18)\nwhere the ranks of this machine are:\n") !=
        std::string::npos);
  CHECK(full_text(page).starts_with("ranks 0,1 are in "));
}

TEST_CASE("there is no verdict on ranks in one collective by two paths, or in calls that are not for all ranks") {
  CHECK(first_line({"", {}, {in_collective(0, "all_reduce", 7), reducing(1), reducing(2)}}) == no_verdict);
  CHECK(find_culprits({"", {}, {in_collective(0, "all_reduce", 7), reducing(1), reducing(2)}}, 3).ranks.empty());
  CHECK(first_line({"", {}, {in_collective(0, "recv", 7), reducing(1), reducing(2)}}) == no_verdict);
  CHECK(first_line({"", {}, {sleeping(0), sleeping(1)}}) == no_verdict);
}

TEST_CASE("a collective is named by its outermost function, in C++ and MPI too") {
  StackPage page{"", {}, {reducing(0), reducing(1), rank_at(2, {}, "computes"), rank_at(3, {}, "computes")}};
  for (std::size_t i : {0, 1}) {
    auto& frames = page.ranks[i].threads[0].python;
    frames.insert(frames.begin(), {"barrier", packages + "torch/distributed/distributed_c10d.py", 9, {}});
  }
  for (std::size_t i : {2, 3}) {
    page.ranks[i].threads[0].native = {
        {nullptr, 1, "poll"}, {nullptr, 2, "MPID_Progress_wait"}, {nullptr, 3, "MPI_Bcast"}, {nullptr, 4, "train"}};
  }
  CHECK(first_line(page) == "ranks 0,1 are in all_reduce (train.py:18), ranks 2,3 in MPI_Bcast (train)");
}

TEST_CASE("ranks of another world, and services, hold up no rank") {
  StackPage page{"", {}, {reducing(0), reducing(1), sleeping(2), sleeping(3)}};
  page.ranks[2].world = 1;
  page.ranks[3].world = -1;
  page.ranks[3].role = "router";
  CHECK(first_line(page) == no_verdict);
  CHECK(find_culprits(page, 2).ranks.empty());
  page.ranks[2].world = 0;
  CHECK(first_line(page) == "ranks 0,1 wait for rank 2: load_batch (train.py:7), sleeps");
}

TEST_CASE("several ranks that hold up the others are named with their places, then without") {
  StackPage page{"", {}, {reducing(0)}};
  for (int rank = 1; rank < 7; ++rank) {
    page.ranks.push_back(sleeping(rank));
    page.ranks.back().threads[0].python[0].line = rank < 3 ? 7 : 10 + rank;
  }
  CHECK(first_line(page) ==
        "rank 0 waits for rank 3: load_batch (train.py:13), sleeps; for rank 4: load_batch (train.py:14), sleeps; "
        "for rank 5: load_batch (train.py:15), sleeps; for ranks 1,2,6");
}

namespace {

/// Whether a rank with these files of frames, innermost first, and these functions of native ones waits for others.
bool waits(const std::vector<std::string>& files, const std::vector<std::string>& functions = {}) {
  std::vector<PythonFrame> frames;
  for (const std::string& file : files) frames.push_back({"f", file, 1, {}});
  StackPage page{"", {}, {rank_at(0, frames, "sleeps")}};
  for (const std::string& function : functions) page.ranks[0].threads[0].native.push_back({nullptr, 1, function});
  return group_ranks(page).at(0).stance == Stance::waits;
}

}  // namespace

TEST_CASE("a rank waits for others where its innermost frames do") {
  const std::string torch = packages + "torch/";
  const std::string program = "/job/train.py";
  const std::string c10d = torch + "distributed/distributed_c10d.py";
  CHECK(waits({c10d, torch + "distributed/c10d_logger.py", program}));
  CHECK(waits({"/usr/lib/python3.11/threading.py", torch + "utils/_contextlib.py", c10d, program}));
  for (const char* checkout : {"/src/pytorch/torch/", "torch/", "/usr/lib/python3/dist-packages/torch/"}) {
    CAPTURE(checkout);
    CHECK(waits({concat(checkout, "_ops.py"), concat(checkout, "distributed/distributed_c10d.py"), program}));
    CHECK_FALSE(waits({program, concat(checkout, "distributed/distributed_c10d.py")}));
  }
  // A save in a collective of its own, and one in a file.
  const std::string saver = torch + "distributed/checkpoint/state_dict_saver.py";
  CHECK(waits({c10d, torch + "distributed/checkpoint/utils.py", saver, program}));
  CHECK_FALSE(waits({torch + "serialization.py", torch + "distributed/checkpoint/filesystem.py", saver, program}));
  // What lies below the program for all of its run, and what calls it.
  for (const char* part : {"elastic/multiprocessing/errors/__init__.py", "fsdp/_runtime_utils.py", "optim/zero.py",
                           "_composable/fsdp/_fsdp_state.py", "pipelining/schedules.py", "tensor/_dispatch.py",
                           "algorithms/join.py", "launcher/api.py", "run.py"}) {
    CAPTURE(part);
    CHECK_FALSE(waits({program, torch + "distributed/" + part, program}));
    CHECK_FALSE(waits({torch + "nn/modules/module.py", torch + "distributed/" + part, program}));
    CHECK(waits({c10d, torch + "distributed/" + part, program}));
  }
  CHECK(waits({torch + "distributed/nn/functional.py", program}));
  CHECK_FALSE(waits({torch + "nn/functional.py", program}));
  CHECK_FALSE(waits({torch + "utils/data/dataloader.py", program}));
  // Another package, whose loader hangs below a collective of objects.
  CHECK_FALSE(waits({packages + "fsspec/asyn.py", c10d, program}));
  CHECK(waits({packages + "horovod/torch/mpi_ops.py", program}));
  CHECK_FALSE(waits({"/home/me/horovod/train.py", "/home/me/mpi4py/main.py"}));
  CHECK_FALSE(waits({"/home/me/mytorch/distributed/distributed_c10d.py"}));
}

TEST_CASE("native functions tell whether a rank waits, up to the interpreter") {
  const std::string program = "/job/train.py";
  for (const char* name : {"gloo::transport::wait", "ncclGroupEnd", "MPI_Barrier", "cudaDeviceSynchronize",
                           "cudaEventSynchronize", "cuStreamSynchronize", "hipStreamSynchronize"}) {
    CAPTURE(name);
    CHECK(waits({program}, {"poll", name, "_PyEval_EvalFrameDefault"}));
    CHECK_FALSE(waits({program}, {"poll", "_PyEval_EvalFrameDefault", name}));
    CHECK(waits({}, {"poll", name, "main"}));
  }
  CHECK_FALSE(waits({program}, {"poll", "cudaMalloc"}));
}

TEST_CASE("ranks whose stacks only look equal when they are joined are two groups") {
  const StackPage page{"",
                       {},
                       {rank_at(0, {{"x\nf\n1\ny", "f", 2, {{"n", 1}}}}, "sleeps"),
                        rank_at(1, {{"x", "f", 1, {{"n", 1}}}, {"y", "f", 2, {{"n", 1}}}}, "sleeps")}};
  CHECK(group_ranks(page).size() == 2);
  CHECK(full_text(page).find("rank 1 ") != std::string::npos);
}

TEST_CASE("a child that a rank waits for has a line of its own, and is in the reason") {
  StackPage page{"", {}, {reducing(0), sleeping(1)}};
  RankStacks loader = sleeping(1);
  loader.pid = 4711;
  loader.threads[0].python[0].function = "__getitem__";
  page.ranks[1].threads[0].doing = "waits for a pipe";
  page.ranks[1].awaited = {loader};
  const std::string line = "child 4711 python3: __getitem__ (train.py:7), sleeps";
  CHECK(short_text(page, "").find(concat("\n    ", line, "\n")) != std::string::npos);
  CHECK(full_text(page).find("child of rank 1 (pid 4711 python3), 1 thread\n") != std::string::npos);
  CHECK(find_culprits(page, 2).why == "held up the others: load_batch (train.py:7), waits for a pipe; " + line);
  CHECK(nlohmann::json::parse(json_text(page))["ranks"][1]["awaited"][0]["pid"] == 4711);
}

TEST_CASE("if a main thread waits for a thread, three that do too have lines, those in Python and at locks first") {
  StackPage page{"", {}, {sleeping(0)}};
  auto& threads = page.ranks[0].threads;
  threads[0].on_futex = true;
  const auto add = [&](std::string name, bool on_futex, std::string function) {
    ThreadStack thread;
    thread.name = std::move(name);
    thread.on_futex = on_futex;
    thread.native = {{nullptr, 1, std::move(function)}, {nullptr, 2, "run"}};
    threads.push_back(std::move(thread));
  };
  add("idle", true, "pthread_cond_wait");
  add("other", true, "pthread_cond_wait");
  add("busy", false, "read");
  add("stuck", true, "pthread_mutex_lock");
  add("\033unknown", true, "");
  threads.back().native.clear();
  add("python", true, "futex_wait");
  threads.back().python = {{"put", "/job/train.py", 5, {}}};
  CHECK(
      short_text(page, "").ends_with("\n    thread python: put (train.py:5)\n"
                                     "    thread stuck: pthread_mutex_lock < run\n"
                                     "    thread idle: pthread_cond_wait < run\n"));
  threads[0].on_futex = false;
  CHECK(short_text(page, "").find("thread ") == std::string::npos);
}

TEST_CASE("children of several ranks say whose they are, and how many there are") {
  StackPage page{"", {}, {sleeping(0), sleeping(1)}};
  for (RankStacks& rank : page.ranks) rank.awaited = {sleeping(rank.rank), sleeping(rank.rank)};
  const std::string text = short_text(page, "");
  CHECK(text.find("\n    rank 1: child 4701 python3: load_batch") != std::string::npos);
  CHECK(text.find("\n    ... 1 more\n") != std::string::npos);
}

TEST_CASE("frames above the limit of the reader are said") {
  StackPage page{"", {}, {sleeping(0)}};
  page.ranks[0].threads[0].python_left_out = 1488;
  CHECK(short_text(page, "/job").find("train.py:19\n    ... at least 1488 more frames\n") != std::string::npos);
  CHECK(full_text(page).find("... at least 1488 more frames\n") != std::string::npos);
  CHECK(nlohmann::json::parse(json_text(page))["ranks"][0]["threads"][0]["python_left_out"] == 1488);
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

TEST_CASE("a group is on a socket if its ranks are on one of the same peer") {
  StackPage page{"", {}, {sleeping(0), sleeping(1)}};
  for (RankStacks& rank : page.ranks) {
    rank.threads[0].on_socket = true;
    rank.threads[0].doing = "receives from rank 2";
  }
  CHECK(short_text(page, "").find("  ranks 0,1: receives from rank 2, ") != std::string::npos);
  page.ranks[1].threads[0].doing = "receives from rank 0";
  CHECK(short_text(page, "").find("  ranks 0,1: waits for other ranks, ") != std::string::npos);
}

TEST_CASE("ranks that are at work are no culprits of a rank that timed out") {
  const StackPage page{"", {}, {sleeping(1), sleeping(2), sleeping(3)}};
  CHECK(find_culprits(page, 4).ranks.empty());
  StackPage gave_up{"", {}, {reducing(0), sleeping(1)}};
  gave_up.gave_up = {{"", 0}};
  CHECK(find_culprits(gave_up, 2).ranks == std::vector{RankName{"", 1}});
  CHECK(find_culprits({"", {}, {sleeping(0), RankStacks()}}, 2).ranks.empty());  // no rank waits for it
  CHECK(find_culprits({}, 2).ranks.empty());
}

TEST_CASE("a program without Python shows its functions, or file and address") {
  StackPage page{"", {}, {rank_at(0, {}, "computes")}};
  const auto program = std::make_shared<const Module>(Module{"/job/train", 1, 1, 1});
  page.ranks[0].threads[0].native = {{program, 0x1234, "spin()"}, {program, 0x5678, ""}, {nullptr, 0x7f00, ""}};
  page.ranks[0].cpu = 0.998;
  const std::string beginning =
      "where the ranks of this machine are:\n"
      "  rank 0 (pid 4700): computes, 100 % CPU\n"
      "    spin()                       train\n";
  CHECK(short_text(page, "") == beginning + "    train, no file (2 frames without names)\n");
  CHECK(full_text(page).find("    native: train+0x5678\n    native: 0x7f00\n") != std::string::npos);
  page.ranks[0].threads[0].native[2].function = "main";
  CHECK(short_text(page, "") == beginning + "    train+0x5678\n    0x7f00\n");
  // Frames that are left out are counted, not their lines.
  for (int i = 0; i < 30; ++i) {
    page.ranks[0].threads[0].native.push_back({program, 0x1, ""});
    if (i % 2 == 1) page.ranks[0].threads[0].native.push_back({program, 0x2, "f()"});
  }
  CHECK(short_text(page, "").find("\n    ... 21 frames\n") != std::string::npos);
}

TEST_CASE("all threads add nothing to a page that shows the only one of each rank whole") {
  StackPage page{"", {}, {rank_at(0, {}, "computes"), rank_at(1, {}, "computes")}};
  const auto program = std::make_shared<const Module>(Module{"/job/train", 1, 1, 1});
  for (RankStacks& rank : page.ranks) rank.threads[0].native = {{program, 0x1234, "spin()"}, {program, 0x5678, ""}};
  RankStacks& rank = page.ranks[1];
  const auto adds = [&] { return adds_to(short_text(page, ""), full_text(page), page); };
  CHECK_FALSE(adds());
  SECTION("names are missing") { page.is_named = false; }
  SECTION("another thread") { rank.threads.push_back(rank.threads[0]); }
  SECTION("threads that were left out") { rank.threads_left_out = 1; }
  SECTION("a child with a stack of its own") { rank.awaited = {page.ranks[0]}; }
  SECTION("a stack of Python, of which only some native functions are shown") {
    rank.threads[0].python = {{"f", "a.py", 1, {}}};
  }
  SECTION("more frames than a page has") {
    rank.threads[0].native.insert(rank.threads[0].native.begin(), 30, {program, 0x9, "f()"});
  }
  SECTION("a long line") { rank.threads[0].native[0].function = std::string(200, 'f'); }
  CHECK(adds());
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

TEST_CASE("the groups of the page as JSON, with the frames of the main threads") {
  StackPage page{"", {}, {reducing(0), sleeping(1), sleeping(2), RankStacks()}};
  page.ranks[1].threads[0].python.resize(30);
  page.ranks[2].threads[0].python.resize(30);
  page.ranks[2].threads[0].python[0].numbers = {{"step", 4}};
  page.ranks[2].cpu = 1;
  page.ranks[3].rank = 3;
  const auto groups = nlohmann::json::parse(groups_json(page));
  REQUIRE(groups.size() == 3);
  CHECK(groups[0]["ranks"] == std::vector{1, 2});
  CHECK(groups[0]["doing"] == "sleeps");
  CHECK(groups[0]["cpu"] == 0.5);
  CHECK(groups[0]["python"].size() == 20);
  CHECK(groups[0]["python"][0]["function"] == "load_batch");
  CHECK(groups[0]["python"][0]["numbers"].empty());
  CHECK(groups[0]["native"][0]["function"] == "clock_nanosleep");
  CHECK(groups[1]["doing"] == "waits for other ranks");
  CHECK(groups[2]["doing"] == "has ended");
  page.ranks = {};
  for (int rank = 0; rank < 12; ++rank) page.ranks.push_back(rank_at(rank, {{"f", "/job/a.py", rank, {}}}, "sleeps"));
  CHECK(nlohmann::json::parse(groups_json(page)).size() == 10);
}
