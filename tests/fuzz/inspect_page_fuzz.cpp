// The grouping of ranks and the texts of a page, whose names are anything that a process has.
//
// The input is a page: few ranks, threads, children and frames, with names that are often equal or parts of each other.
//
// Checks: each rank is in one group, whose stacks are equal part by part; groups are in the order of the page; texts
// are bounded and have no control characters; the JSON is valid and has all ranks and threads.
#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "ddrun/base/text.hpp"
#include "ddrun/inspect/stack_page.hpp"
#include "input.hpp"

using namespace ddrun;
using namespace ddrun::inspect;
using ddrun::fuzz::Input;

namespace {

std::string name(Input& input) {
  constexpr std::string_view known[] = {"",
                                        "\n",
                                        "x\nf\n1",
                                        "/job/train.py",
                                        "/env/site-packages/torch/distributed/distributed_c10d.py",
                                        "/env/lib/python3.11/threading.py",
                                        "torch/distributed/",
                                        "-packages/",
                                        "/lib/python3.",
                                        "gloo::wait",
                                        "_PyEval_EvalFrameDefault",
                                        "cuStreamSynchronize",
                                        "\033[2J"};
  const std::size_t kind = input.byte();
  if (kind < std::size(known)) return std::string(known[kind]);
  return std::string(input.bytes(kind % 32));
}

ThreadStack thread(Input& input) {
  ThreadStack thread;
  const unsigned facts = input.byte();
  thread.state = "RSDTtZX?"[facts % 8];
  thread.on_socket = (facts & 8U) != 0;
  thread.on_futex = (facts & 64U) != 0;
  thread.doing = name(input);
  thread.python_left_out = facts >> 4U & 3U;
  thread.native_left_out = facts >> 6U;
  for (unsigned i = input.byte() % 40; i > 0; --i) {
    thread.python.push_back({name(input), name(input), input.byte() - 1, {}});
    for (unsigned n = input.byte() % 3; n > 0; --n)
      thread.python.back().numbers.emplace_back(name(input), input.byte());
  }
  for (unsigned i = input.byte() % 40; i > 0; --i) {
    const auto module = std::make_shared<const Module>(Module{name(input), 1, 1, 1});
    thread.native.push_back({input.byte() % 2 == 0 ? module : nullptr, input.byte(), name(input)});
  }
  return thread;
}

RankStacks process(Input& input, int number) {
  RankStacks process;
  process.rank = number;
  process.world = input.byte() % 4 - 1;
  process.pid = input.byte();
  process.child = input.byte() % 3;
  process.program = name(input);
  process.cpu = input.byte() / 10.0;
  process.note = name(input);
  for (unsigned i = input.byte() % 4; i > 0; --i) process.threads.push_back(thread(input));
  return process;
}

/// All that makes a place, part by part.
auto parts_of(const RankStacks& rank) {
  std::vector<std::tuple<std::string, std::string, std::uint64_t>> parts;
  if (rank.threads.empty()) return parts;
  const ThreadStack& main = rank.threads.front();
  for (const PythonFrame& frame : main.python) parts.emplace_back(frame.function, frame.file, frame.line);
  if (!parts.empty()) return parts;
  for (const NativeFrame& frame : main.native) {
    parts.emplace_back(frame.function, frame.module ? frame.module->path : std::string(),
                       frame.function.empty() ? frame.address : 0);
  }
  return parts;
}

void check_text(std::string_view text) {
  DDRUN_FUZZ_CHECK(text.ends_with('\n'));
  for (const char c : text) DDRUN_FUZZ_CHECK(c == '\n' || static_cast<unsigned char>(c) >= 0x20);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  StackPage page;
  for (int rank = input.byte() % 16; rank > 0; --rank) {
    page.ranks.push_back(process(input, 16 - rank));
    for (unsigned i = input.byte() % 5; i > 0; --i) page.ranks.back().awaited.push_back(process(input, 16 - rank));
  }
  const auto groups = group_ranks(page);
  std::set<int> seen;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    DDRUN_FUZZ_CHECK(!groups[i].ranks.empty() && (i == 0 || groups[i - 1].stance <= groups[i].stance));
    for (const RankStacks* rank : groups[i].ranks) {
      DDRUN_FUZZ_CHECK(seen.insert(rank->rank).second);
      DDRUN_FUZZ_CHECK(parts_of(*rank) == parts_of(*groups[i].ranks.front()));
    }
  }
  DDRUN_FUZZ_CHECK(seen.size() == page.ranks.size());

  // From another machine: as it was sent, and any bytes.
  StackPage whole;
  whole.is_whole_job = true;
  DDRUN_FUZZ_CHECK(add_share(whole, share_of({{"", 1}}, 0, share_text(page, true, 1U << 20U)), "h"));
  DDRUN_FUZZ_CHECK(whole.ranks.size() == page.ranks.size());
  (void)add_share(whole, {reinterpret_cast<const char*>(data), size}, "i");
  check_text(full_text(whole));
  merge_equal(whole);
  check_text(short_text(whole, ""));
  (void)find_culprits(whole, 8);

  const HeldUp culprits = find_culprits(page, input.byte() % 32);
  DDRUN_FUZZ_CHECK(culprits.ranks.empty() == culprits.why.empty());
  check_text(culprits.why + "\n");
  const std::string text = short_text(page, name(input));
  check_text(text);
  DDRUN_FUZZ_CHECK(std::count(text.begin(), text.end(), '\n') <= 2 + 10 * (1 + 20 + 2 + 3 + 3 + 2) + 1);
  check_text(full_text(page));

  const auto json = nlohmann::json::parse(json_text(page));
  DDRUN_FUZZ_CHECK(json["groups"].size() == groups.size() && json["ranks"].size() == page.ranks.size());
  for (std::size_t i = 0; i < page.ranks.size(); ++i) {
    DDRUN_FUZZ_CHECK(json["ranks"][i]["threads"].size() == page.ranks[i].threads.size());
    DDRUN_FUZZ_CHECK(json["ranks"][i]["awaited"].size() == page.ranks[i].awaited.size());
  }
  return 0;
}
