#include "verdict.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "ddrun/base/messages.hpp"
#include "stack_groups.hpp"

namespace ddrun::inspect {

namespace {

constexpr std::size_t max_named_groups = 3;  ///< in the first line, with their places
/// Of a Python program, whose interpreter's frames say nothing.
constexpr std::size_t max_native_names = 6;
constexpr std::size_t max_line = 400;  ///< columns

/// "load_batch (train.py:7), sleeps"
std::string summary(const RankStacks& rank, Stance stance) {
  if (rank.threads.empty()) return "has ended";
  const ThreadStack& main = rank.threads.front();
  std::string place = place_text(main);
  if (!place.empty()) place += ", ";
  place += describe(main, stance);
  return rank.awaited.empty() ? place : concat(place, "; ", describe_awaited(rank.awaited.front()));
}

/// Whether ranks that wait in this call wait for all others. Of other calls it is not known for which.
bool is_collective(std::string_view function) {
  constexpr std::array<std::string_view, 10> others{"send", "Send", "recv",  "Recv",  "wait",
                                                    "Wait", "Test", "Probe", "Group", "ynchronize"};
  constexpr std::array<std::string_view, 8> internals{"c10d::", "ompi_", "MPIR_", "MPID",
                                                      "ucp_",   "uct_",  "ibv_",  "fi_cq"};
  return !begins_with_any(function, internals) &&
         std::ranges::none_of(others, [&](std::string_view part) { return function.find(part) != function.npos; });
}

/// What the ranks of one world wait for.
struct Verdict {
  std::vector<RankName> waiting;
  std::vector<const StackGroup*> apart;  ///< for these: halted or apart
  /// What those apart have not done, as they have never connected to the store: "has not reached init_process_group".
  std::string not_reached;
  std::vector<RankName> ended;
  struct Collective {
    Call call;
    std::vector<RankName> ranks;
  };
  /// If there are none, but each that waits is in a collective: the different ones, that of fewest ranks first.
  std::vector<Collective> collectives;

  [[nodiscard]] std::string collectives_text() const {  // without the ranks in the first one
    std::vector<std::string> parts;
    for (const auto& [call, ranks] : collectives) {
      const std::string who = parts.empty() ? (ranks.size() > 1 ? "are" : "is") : name_workers(ranks);
      parts.push_back(concat(who, " in ", call.function, call.place.empty() ? "" : concat(" (", call.place, ")")));
    }
    return join(parts, ", ");
  }
};

/// Whether it is known of all ranks in the group that they have no connection to the store.
bool never_in_store(const StackGroup& group) {
  return std::ranges::all_of(group.ranks, [](const RankStacks* rank) {
    return rank->connections_known != RankStacks::Connections::unknown &&
           std::ranges::none_of(rank->connections, &Connection::to_store);
  });
}

Verdict judge(const StackPage& page, const std::vector<StackGroup>& groups, int world) {
  Verdict verdict;
  std::map<std::string_view, Verdict::Collective> by_function;
  for (const StackGroup& group : groups) {
    const RankStacks& first = *group.ranks.front();
    if (first.world != world) continue;
    if (group.stance == Stance::unknown && first.threads.empty() && first.note.empty()) append(verdict.ended, group);
    if (group.stance == Stance::unknown) continue;
    if (group.stance != Stance::waits) {
      verdict.apart.push_back(&group);
      continue;
    }
    append(verdict.waiting, group);
    Call call = find_call(first.threads.front()).value_or(Call());
    auto& collective = by_function[is_collective(call.function) ? call.function : ""];
    if (collective.ranks.empty()) collective.call = std::move(call);
    append(collective.ranks, group);
  }
  const bool some_in_store = std::ranges::any_of(verdict.waiting, [&](const RankName& rank) {
    return std::ranges::find(page.in_store, rank) != page.in_store.end();
  });
  if (some_in_store && std::ranges::all_of(verdict.apart, [](const auto* group) { return never_in_store(*group); })) {
    const std::string_view call = by_function.size() == 1 ? by_function.begin()->first : "";
    verdict.not_reached = call.empty() ? "not connected to the store" : concat("not reached ", call);
  }
  if (!verdict.apart.empty() || by_function.size() < 2 || by_function.contains("")) return verdict;
  for (auto& [function, collective] : by_function) verdict.collectives.push_back(std::move(collective));
  std::ranges::sort(verdict.collectives, {},
                    [](const auto& one) { return std::tuple(one.ranks.size(), one.ranks.front().rank); });
  return verdict;
}

/// Empty: not known.
std::string verdict_text(const Verdict& verdict) {
  if (!verdict.collectives.empty())
    return concat(name_workers(verdict.collectives.front().ranks), " ", verdict.collectives_text());
  if (verdict.waiting.empty() || (verdict.apart.empty() && verdict.ended.empty())) return {};
  const std::string waiting = concat(name_workers(verdict.waiting), verdict.waiting.size() > 1 ? " wait" : " waits");
  if (verdict.apart.empty()) {
    return concat(waiting, " for other ranks; ", name_workers(verdict.ended),
                  verdict.ended.size() > 1 ? " have" : " has", " ended");
  }
  std::string text;
  if (!verdict.not_reached.empty()) {
    std::vector<RankName> apart;
    for (const StackGroup* group : verdict.apart) append(apart, *group);
    const std::string where = verdict.apart.size() == 1 ? on_host(*verdict.apart.front()) : "";
    text = concat(name_workers(apart), where, apart.size() > 1 ? " have " : " has ", verdict.not_reached, "; ");
  }
  text += waiting;
  for (std::size_t i = 0; i < std::min(verdict.apart.size(), max_named_groups); ++i) {
    const StackGroup& group = *verdict.apart[i];
    const bool is_named = verdict.apart.size() == 1 && !verdict.not_reached.empty();
    const std::string who = concat(name_workers(names_of(group)), on_host(group));
    text += concat(i > 0 ? "; for " : " for ", is_named ? size_of(group) > 1 ? "them" : "it" : who, ": ",
                   summary(*group.ranks.front(), group.stance));
  }
  std::vector<RankName> more;
  for (std::size_t i = max_named_groups; i < verdict.apart.size(); ++i) append(more, *verdict.apart[i]);
  return more.empty() ? text : concat(text, "; for ", name_workers(more));
}

void leave_out_gave_up(StackPage& page) {
  const std::vector<RankName> gave_up = std::exchange(page.gave_up, {});
  keep_ranks(page, [&](const RankName& rank) { return std::ranges::find(gave_up, rank) == gave_up.end(); });
}

HeldUp held_up(const StackPage& page, std::vector<RankName> ranks, const std::string& why) {
  HeldUp culprits{std::move(ranks), plain_line(why)};
  const RankName& first = culprits.ranks.front();
  for (const RankStacks& rank : page.ranks) {
    if (RankName{rank.role, rank.rank} == first) culprits.pid = rank.pid;
  }
  if (const auto after = page.machines.upper_bound(first.rank); after != page.machines.begin()) {
    const auto& [base_rank, host] = *std::prev(after);
    culprits.host = host;
    culprits.local_rank = first.rank - base_rank;
  }
  return culprits;
}

}  // namespace

std::string native_names(const ThreadStack& thread) {
  std::vector<std::string> names;
  for (const NativeFrame& frame : thread.native) {
    const std::string_view name = frame.function;
    const bool interpreter = name.starts_with("_Py") || name.starts_with("Py") ||
                             name.find("vectorcall") != std::string_view::npos || name.starts_with("cfunction_") ||
                             name.starts_with("method_");
    if (interpreter && !names.empty()) break;
    if (name.empty() || interpreter) continue;
    names.emplace_back(name);
    if (names.size() == max_native_names) break;
  }
  return join(names, " < ");
}

std::string describe(const ThreadStack& thread, Stance stance) {
  if (stance != Stance::waits || (thread.on_socket && thread.peers.size() < 2)) return thread.doing;
  return concat("waits for other ranks", thread.state == 'R' ? " and computes" : "");
}

std::string on_host(const StackGroup& group) {
  const std::string host = host_of(group);
  return host.empty() ? "" : " on " + host;
}

std::string place_text(const ThreadStack& thread) {
  const auto own = std::ranges::find_if_not(thread.python, is_library);
  const auto frame = own != thread.python.end() ? own : thread.python.begin();
  if (frame == thread.python.end()) return native_names(thread);
  return concat(frame->function, " (", file_name(frame->file), ":", frame->line, ")");
}

std::string describe_awaited(const RankStacks& process) {
  return concat("child ", process.read_pid(), " ", process.program, ": ", summary(process, Stance::apart));
}

std::string verdict_line(const StackPage& page, const std::vector<StackGroup>& groups) {
  if (!page.gave_up.empty()) {
    StackPage rest = page;
    leave_out_gave_up(rest);
    return verdict_line(rest, group_ranks(rest));
  }
  std::set<int> worlds;
  for (const RankStacks& rank : page.ranks) worlds.insert(rank.world);
  worlds.erase(-1);
  for (const int world : worlds) {
    const std::string line = page.is_named ? verdict_text(judge(page, groups, world)) : "";
    if (!line.empty()) return cut_line(plain_line(line), max_line) + "\n";
  }
  return {};
}

HeldUp find_culprits(StackPage page, std::size_t world) {
  std::set<int> waited_in;  // worlds
  for (const RankStacks& rank : page.ranks) {
    const bool gave_up = std::ranges::find(page.gave_up, RankName{rank.role, rank.rank}) != page.gave_up.end();
    if (gave_up) waited_in.insert(rank.world);
  }
  leave_out_gave_up(page);
  const auto groups = group_ranks(page);
  const auto member = std::ranges::find_if(page.ranks, [](const RankStacks& rank) { return rank.world >= 0; });
  if (member == page.ranks.end() || !page.is_named) return {};
  const Verdict verdict = judge(page, groups, member->world);
  std::size_t apart = 0;
  for (const StackGroup* group : verdict.apart) apart += size_of(*group);
  const bool has_waited = !verdict.waiting.empty() || waited_in.contains(member->world);
  if (apart > 0 && has_waited && 2 * apart <= world) {
    const StackGroup& first = *verdict.apart.front();
    const std::string why = verdict.not_reached.empty() ? "held up the others" : "has " + verdict.not_reached;
    return held_up(page, names_of(first), concat(why, ": ", summary(*first.ranks.front(), first.stance)));
  }
  if (verdict.collectives.empty() || 2 * verdict.collectives.back().ranks.size() <= world) return {};
  return held_up(page, verdict.collectives.front().ranks, verdict.collectives_text());
}

}  // namespace ddrun::inspect
