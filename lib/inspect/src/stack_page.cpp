#include "ddrun/inspect/stack_page.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::inspect {

namespace {

using Json = nlohmann::json;

constexpr std::size_t max_shown_groups = 10;
constexpr std::size_t max_shown_frames = 20;
constexpr std::size_t max_shown_children = 3;
constexpr std::size_t max_shown_blocked = 3;
constexpr std::size_t max_named_groups = 3;  ///< in the first line, with their places
/// Of a Python program, whose interpreter's frames say nothing.
constexpr std::size_t max_native_names = 6;
constexpr int function_columns = 28;
/// Of a line on the console, and in a file.
constexpr std::size_t console_columns = 100;
constexpr std::size_t file_columns = 400;

/// Of libraries: where their frames wait for other ranks. Other parts of torch/distributed/ call the program, wait for
/// disks, or reach ranks by these.
constexpr std::string_view communication_files[] = {"mpi4py/",
                                                    "horovod/",
                                                    "ray/util/collective/",
                                                    "torch/distributed/distributed_c10d.py",
                                                    "torch/distributed/rendezvous.py",
                                                    "torch/distributed/_functional_collectives",
                                                    "torch/distributed/nn/functional.py",
                                                    "torch/distributed/rpc/",
                                                    "torch/distributed/_symmetric_memory/"};
/// Beginnings of functions that wait for other ranks.
constexpr std::array<std::string_view, 14> communication_functions{
    "gloo::", "c10d::", "nccl", "rccl", "MPI_", "PMPI_", "ompi_",
    "MPIR_",  "MPID",   "ucp_", "uct_", "ibv_", "fi_cq", "ddrun::allreduce"};

/// Of a library: its path below site-packages/ or dist-packages/, or of a checkout from torch/ on; empty: it is none.
std::string_view in_packages(std::string_view path) {
  constexpr std::string_view mark = "-packages/";
  if (const std::size_t at = path.rfind(mark); at != std::string_view::npos) return path.substr(at + mark.size());
  std::size_t at = path.rfind("torch/");
  while (at != std::string_view::npos && at != 0 && path[at - 1] != '/') at = path.rfind("torch/", at - 1);
  return at == std::string_view::npos ? std::string_view() : path.substr(at);
}

bool begins_with_any(std::string_view text, std::span<const std::string_view> names) {
  return std::ranges::any_of(names, [&](std::string_view name) { return text.starts_with(name); });
}

bool is_standard(std::string_view path) {
  return path.starts_with("<frozen ") || (in_packages(path).empty() && (path.find("/lib/python3") != path.npos ||
                                                                        path.find("/lib64/python3") != path.npos));
}

bool communicates(const NativeFrame& frame) {
  const std::string_view name = frame.function;
  const bool of_device = name.starts_with("cu") || name.starts_with("hip");
  return begins_with_any(name, communication_functions) || (of_device && name.find("Synchronize") != name.npos);
}

std::string_view file_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

bool is_library(const PythonFrame& frame) { return is_standard(frame.file) || !in_packages(frame.file).empty(); }

/// A call of a communication library, by its outermost frame.
struct Call {
  std::string_view function;
  std::string place;  ///< of the caller: "train.py:31", the name of a native function, or empty
};

/// Only the innermost frames tell: a decorator, a training step or a hook of a library lies below the program for all
/// of its run.
std::optional<Call> find_call(const ThreadStack& thread) {
  std::optional<Call> call;
  const auto own = std::ranges::find_if_not(thread.python, is_library);
  const std::string place = own != thread.python.end() ? concat(file_name(own->file), ":", own->line) : "";
  for (const PythonFrame& frame : thread.python) {
    if (begins_with_any(in_packages(frame.file), communication_files)) call = {frame.function, place};
    else if (!is_standard(frame.file) && !in_packages(frame.file).starts_with("torch/")) break;
  }
  if (call) return call;
  bool is_caller = false;
  for (const NativeFrame& frame : thread.native) {
    if (frame.function.starts_with("_PyEval_")) break;
    if (communicates(frame)) call = {frame.function, place};
    else if (is_caller && place.empty()) call->place = frame.function;
    is_caller = communicates(frame);
  }
  return call;
}

Stance stance_of(const RankStacks& rank, bool sockets_count) {
  if (rank.threads.empty()) return Stance::unknown;
  const ThreadStack& main = rank.threads.front();
  switch (main.state) {
    case 'Z':
    case 'X': return Stance::unknown;
    case 'T':
    case 't':
    case 'D': return Stance::halted;
    default: break;
  }
  if (find_call(main) || (sockets_count && main.on_socket)) return Stance::waits;
  return main.python.empty() && main.native.empty() && !rank.note.empty() ? Stance::unknown : Stance::apart;
}

/// Equal for ranks that are at the same place. Parts and not one text, as names of a process may hold any separator.
using Place = std::pair<char, std::vector<std::tuple<std::string_view, std::string_view, std::uint64_t>>>;

Place place_of(const RankStacks& rank) {
  if (rank.threads.empty()) return {'n', {{rank.note, "", 0}}};
  const ThreadStack& main = rank.threads.front();
  Place place{'p', {}};
  for (const PythonFrame& frame : main.python) place.second.emplace_back(frame.function, frame.file, frame.line);
  if (!main.python.empty()) return place;
  for (const NativeFrame& frame : main.native) {
    const std::string_view path = frame.module ? std::string_view(frame.module->path) : "";
    place.second.emplace_back(frame.function, path, frame.function.empty() ? frame.address : 0);
  }
  return main.native.empty() ? Place{'d', {{main.doing, "", 0}}} : Place{'f', std::move(place.second)};
}

/// Without the folder of installed packages, of the standard library, or of the job.
std::string_view short_path(std::string_view path, std::string_view directory) {
  if (const std::string_view package = in_packages(path); !package.empty()) return package;
  if (const std::size_t at = path.find("/lib/python3."); at != std::string_view::npos) {
    return path.substr(path.find('/', at + 5) + 1);
  }
  if (!directory.empty() && path.starts_with(directory) && path.substr(directory.size()).starts_with('/')) {
    path.remove_prefix(directory.size() + 1);
  }
  return path;
}

/// With blanks up to the next column.
std::string padded(std::string function) {
  auto columns = std::ranges::count_if(function, [](char c) { return (c & 0xc0) != 0x80; });  // UTF-8
  do function += ' ';
  while (columns++ < function_columns);
  return function;
}

std::string line_of(const PythonFrame& frame, std::string_view directory) {
  std::string line = concat(padded(plain_line(frame.function)), short_path(frame.file, directory), ":", frame.line);
  for (const auto& [name, value] : frame.numbers) line += concat("  ", name, "=", value);
  return line;
}

std::string line_of(const NativeFrame& frame) {
  std::array<char, 20> address{};
  std::snprintf(address.data(), address.size(), "0x%llx", static_cast<unsigned long long>(frame.address));
  if (!frame.module) return address.data();
  const std::string place = concat(file_name(frame.module->path), "+", address.data());
  if (frame.function.empty()) return place;
  return concat(padded(frame.function), file_name(frame.module->path));
}

/// "clock_nanosleep < time_sleep": up to the interpreter, whose functions are left out.
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

class Text {
 public:
  explicit Text(std::size_t columns) : columns_(columns) {}
  void line(std::size_t indent, std::string_view text) {
    text_ += concat(std::string(indent, ' '), cut_line(plain_line(text), columns_ - indent), "\n");
  }
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  std::size_t columns_;
  std::string text_;
};

/// At most `limit` lines: the middle is left out. `left_out`: outer frames that are not there, at least.
template <class Frame, class LineOf>
void add_frames(Text& text, const std::vector<Frame>& frames, std::size_t left_out, std::size_t limit, LineOf line) {
  const std::size_t outer = frames.size() > limit ? limit / 3 : 0;
  const std::size_t inner = frames.size() > limit ? limit - outer - 1 : frames.size();
  for (std::size_t i = 0; i < frames.size(); ++i) {
    if (i == inner) text.line(4, concat("... ", frames.size() - inner - outer, " frames"));
    if (i < inner || i >= frames.size() - outer) text.line(4, line(frames[i]));
  }
  if (left_out > 0) text.line(4, concat("... at least ", counted(static_cast<long long>(left_out), "more frame")));
}

std::string describe(const ThreadStack& thread, Stance stance) {
  if (stance != Stance::waits || (thread.on_socket && thread.peers.size() < 2)) return thread.doing;
  return concat("waits for other ranks", thread.state == 'R' ? " and computes" : "");
}

std::vector<int> numbers_of(const std::vector<const RankStacks*>& ranks) {
  std::vector<int> numbers;
  for (const RankStacks* rank : ranks) {
    numbers.push_back(rank->rank);
    numbers.insert(numbers.end(), rank->also.begin(), rank->also.end());
  }
  std::ranges::sort(numbers);
  return numbers;
}

std::vector<RankName> names_of(const StackGroup& group) {
  std::vector<RankName> names;
  for (const int number : numbers_of(group.ranks)) names.push_back({group.ranks.front()->role, number});
  return names;
}

/// Empty: this machine, or several.
std::string host_of(const StackGroup& group) {
  const std::string& host = group.ranks.front()->host;
  const bool is_one = std::ranges::all_of(group.ranks, [&](const RankStacks* rank) { return rank->host == host; });
  return is_one ? host : "";
}

std::string on_host(const StackGroup& group) {
  const std::string host = host_of(group);
  return host.empty() ? "" : " on " + host;
}

std::size_t size_of(const StackGroup& group) {
  std::size_t size = 0;
  for (const RankStacks* rank : group.ranks) size += 1 + rank->also.size();
  return size;
}

double mean_cpu(const std::vector<const RankStacks*>& ranks) {
  double sum = 0, count = 0;
  for (const RankStacks* rank : ranks) {
    const double here = 1 + static_cast<double>(rank->also.size());
    sum += here * rank->cpu;
    count += here;
  }
  return sum / count;
}

std::string cpu_text(const StackGroup& group) {
  return concat(std::lround(100 * mean_cpu(group.ranks)), " % CPU", size_of(group) > 1 ? " each" : "");
}

void append(std::vector<RankName>& to, const StackGroup& group) {
  for (RankName& name : names_of(group)) to.push_back(std::move(name));
}

Json role_json(const RankStacks& rank) { return rank.role.empty() ? Json(nullptr) : Json(rank.role); }

Json host_json(const std::string& host) { return host.empty() ? Json(nullptr) : Json(host); }

/// The main thread of the first rank, with those numbers that all ranks have, and on a socket only if all are on one of
/// the same peer.
ThreadStack common_stack(const StackGroup& group) {
  ThreadStack common = group.ranks.front()->threads.front();
  for (const RankStacks* rank : group.ranks) {
    const ThreadStack& main = rank->threads.front();
    common.on_socket = common.on_socket && main.doing == common.doing;
    for (std::size_t i = 0; i < common.python.size(); ++i) {
      std::erase_if(common.python[i].numbers, [&](const auto& number) {
        return std::ranges::find(main.python[i].numbers, number) == main.python[i].numbers.end();
      });
    }
  }
  return common;
}

std::string describe_awaited(const RankStacks& process);

/// "load_batch (train.py:7)", or names of native functions; empty: not known.
std::string place_text(const ThreadStack& thread) {
  const auto own = std::ranges::find_if_not(thread.python, is_library);
  const auto frame = own != thread.python.end() ? own : thread.python.begin();
  if (frame == thread.python.end()) return native_names(thread);
  return concat(frame->function, " (", file_name(frame->file), ":", frame->line, ")");
}

/// "load_batch (train.py:7), sleeps"
std::string summary(const RankStacks& rank, Stance stance) {
  if (rank.threads.empty()) return "has ended";
  const ThreadStack& main = rank.threads.front();
  std::string place = place_text(main);
  if (!place.empty()) place += ", ";
  place += describe(main, stance);
  return rank.awaited.empty() ? place : concat(place, "; ", describe_awaited(rank.awaited.front()));
}

/// "child 4711 python3: load_batch (data.py:7), sleeps"
std::string describe_awaited(const RankStacks& process) {
  return concat("child ", process.read_pid(), " ", process.program, ": ", summary(process, Stance::apart));
}

std::string describe_without_threads(const RankStacks& rank) { return rank.note.empty() ? "has ended" : rank.note; }

/// Other threads that wait for a thread, as in a deadlock: those in Python, or at a lock, before idle ones.
void add_blocked(Text& text, const RankStacks& rank, std::string_view whose) {
  std::vector<std::tuple<bool, bool, std::string>> blocked;
  for (std::size_t i = 1; i < rank.threads.size(); ++i) {
    const ThreadStack& thread = rank.threads[i];
    const std::string place = thread.on_futex ? place_text(thread) : "";
    const bool at_lock = place.substr(0, place.find(' ')).find("lock") != std::string::npos;
    if (!place.empty())
      blocked.emplace_back(thread.python.empty(), !at_lock, concat(whose, "thread ", thread.name, ": ", place));
  }
  std::ranges::sort(blocked);
  blocked.resize(std::min(blocked.size(), max_shown_blocked));
  for (const auto& [is_native, is_idle, line] : blocked) text.line(4, line);
}

void add_group(Text& text, const StackGroup& group, std::size_t limit, const std::string& directory) {
  const RankStacks& first = *group.ranks.front();
  std::string who = name_workers(names_of(group)) + on_host(group);
  if (size_of(group) == 1 && first.pid != 0) {
    who +=
        concat(" (pid ", first.pid, first.child != 0 ? concat(", child ", first.child, " ", first.program) : "", ")");
  }
  if (first.threads.empty()) return text.line(2, concat(who, ": ", describe_without_threads(first)));
  const ThreadStack main = common_stack(group);
  text.line(2, concat(who, ": ", describe(main, group.stance), ", ", cpu_text(group)));
  add_frames(text, main.python, main.python_left_out, limit,
             [&](const PythonFrame& frame) { return line_of(frame, directory); });
  if (main.python.empty()) {
    add_frames(text, main.native, main.native_left_out, limit, [](const NativeFrame& frame) { return line_of(frame); });
  } else if (const std::string names = native_names(main); !names.empty()) {
    text.line(4, concat("native: ", names));
  }
  std::size_t children = 0;
  for (const RankStacks* rank : group.ranks) {
    const std::string whose = group.ranks.size() > 1 ? concat(RankName{rank->role, rank->rank}.text(), ": ") : "";
    if (rank == &first && group.stance == Stance::apart && main.on_futex) add_blocked(text, first, whose);
    for (const RankStacks& process : rank->awaited) {
      if (children++ < max_shown_children) text.line(4, whose + describe_awaited(process));
    }
  }
  if (children > max_shown_children) text.line(4, concat("... ", children - max_shown_children, " more"));
  if (!first.note.empty()) text.line(4, concat("(", first.note, ")"));
}

void add_notes(Text& text, const StackPage& page) {
  for (const std::string& note : page.notes) text.line(2, concat("(", note, ")"));
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

/// The call in which all ranks wait; empty: none, or several.
std::string_view one_call(const std::vector<StackGroup>& groups, int world) {
  std::set<std::string_view> calls;
  for (const StackGroup& group : groups) {
    if (group.stance == Stance::waits && group.ranks.front()->world == world)
      calls.insert(find_call(group.ranks.front()->threads.front()).value_or(Call()).function);
  }
  return calls.size() == 1 && is_collective(*calls.begin()) ? *calls.begin() : std::string_view();
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
    const std::string_view call = one_call(groups, world);
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
  if (verdict.waiting.empty()) return {};
  if (verdict.apart.empty() && !verdict.ended.empty()) {
    return concat(name_workers(verdict.waiting), verdict.waiting.size() > 1 ? " wait" : " waits", " for other ranks; ",
                  name_workers(verdict.ended), verdict.ended.size() > 1 ? " have" : " has", " ended");
  }
  if (verdict.apart.empty()) return {};
  std::string text;
  if (!verdict.not_reached.empty()) {
    std::vector<RankName> apart;
    for (const StackGroup* group : verdict.apart) append(apart, *group);
    const std::string where = verdict.apart.size() == 1 ? on_host(*verdict.apart.front()) : "";
    text = concat(name_workers(apart), where, apart.size() > 1 ? " have " : " has ", verdict.not_reached, "; ");
  }
  text += concat(name_workers(verdict.waiting), verdict.waiting.size() > 1 ? " wait" : " waits");
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

/// The line of the first world that has one, with its '\n'.
std::string verdict_line(const StackPage& page, const std::vector<StackGroup>& groups) {
  if (!page.gave_up.empty()) {
    StackPage rest = page;
    leave_out_gave_up(rest);
    return verdict_line(rest, group_ranks(rest));
  }
  Text text(file_columns);
  std::set<int> worlds;
  for (const RankStacks& rank : page.ranks) worlds.insert(rank.world);
  worlds.erase(-1);
  for (const int world : worlds) {
    const std::string line = page.is_named ? verdict_text(judge(page, groups, world)) : "";
    if (line.empty()) continue;
    text.line(0, line);
    break;
  }
  return text.take();
}

std::string headline(const StackPage& page) {
  return concat("where the ranks of ", page.is_whole_job ? "the job" : "this machine", " are",
                page.why.empty() ? "" : ", ", page.why, ":\n");
}

Json python_json(const std::vector<PythonFrame>& frames) {
  auto list = Json::array();
  for (const PythonFrame& frame : frames) {
    auto numbers = Json::object();
    for (const auto& [name, value] : frame.numbers) numbers[name] = value;
    list.push_back({{"function", frame.function}, {"file", frame.file}, {"line", frame.line}, {"numbers", numbers}});
  }
  return list;
}

Json native_json(const std::vector<NativeFrame>& frames) {
  auto list = Json::array();
  for (const NativeFrame& frame : frames) {
    list.push_back({{"function", frame.function.empty() ? Json(nullptr) : Json(frame.function)},
                    {"module", frame.module ? Json(frame.module->path) : Json(nullptr)},
                    {"address", frame.address}});
  }
  return list;
}

double rounded(double cpu) { return std::round(cpu * 1000) / 1000; }

Json note_json(const RankStacks& rank) { return rank.note.empty() ? Json(nullptr) : Json(rank.note); }

Json rank_json(const RankStacks& rank) {
  Json threads = Json::array();
  for (const ThreadStack& thread : rank.threads) {
    threads.push_back({{"tid", thread.tid},
                       {"name", thread.name},
                       {"state", std::string(1, thread.state)},
                       {"doing", thread.doing},
                       {"python", python_json(thread.python)},
                       {"python_left_out", thread.python_left_out},
                       {"native", native_json(thread.native)},
                       {"native_left_out", thread.native_left_out}});
  }
  Json awaited = Json::array();
  for (const RankStacks& process : rank.awaited) awaited.push_back(rank_json(process));
  return {{"role", role_json(rank)},
          {"rank", rank.rank},
          {"host", host_json(rank.host)},
          {"pid", rank.pid},
          {"child", rank.child != 0 ? Json(rank.child) : Json(nullptr)},
          {"program", rank.program},
          {"cpu", rounded(rank.cpu)},
          {"note", note_json(rank)},
          {"threads_left_out", rank.threads_left_out},
          {"threads", std::move(threads)},
          {"awaited", std::move(awaited)}};
}

Json group_json(const StackGroup& group) {
  constexpr std::array<const char*, 4> stances{"halted", "apart", "waits", "unknown"};
  return {{"role", role_json(*group.ranks.front())},
          {"ranks", numbers_of(group.ranks)},
          {"host", host_json(host_of(group))},
          {"stance", stances[static_cast<std::size_t>(group.stance)]}};
}

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

bool is_in_library(const ThreadStack& thread) { return find_call(thread).has_value(); }

std::vector<StackGroup> group_ranks(const StackPage& page) {
  const bool library_used =
      std::ranges::any_of(page.ranks, [](const RankStacks& rank) { return stance_of(rank, false) == Stance::waits; });
  std::map<std::tuple<Stance, std::string, Place>, StackGroup> by_place;
  for (const RankStacks& rank : page.ranks) {
    const Stance stance = stance_of(rank, !library_used);
    StackGroup& group = by_place[{stance, rank.role, place_of(rank)}];
    group.stance = stance;
    group.ranks.push_back(&rank);
  }
  std::vector<StackGroup> groups;
  for (auto& [key, group] : by_place) groups.push_back(std::move(group));
  std::ranges::sort(groups, {}, [](const StackGroup& group) {
    return std::tuple(group.stance, size_of(group), group.ranks.front()->rank);
  });
  return groups;
}

void keep_ranks(StackPage& page, const std::function<bool(const RankName&)>& keep) {
  std::erase_if(page.ranks, [&](RankStacks& rank) {
    std::erase_if(rank.also, [&](int number) { return !keep({rank.role, number}); });
    const bool is_kept = keep({rank.role, rank.rank});
    if (is_kept || rank.also.empty()) return !is_kept;
    rank.pid = 0;
    rank.rank = rank.also.front();
    rank.also.erase(rank.also.begin());
    return false;
  });
}

void merge_equal(StackPage& page) {
  // Places refer to the ranks.
  std::map<std::tuple<std::string_view, char, std::string_view, std::string_view, Place>, std::vector<RankStacks*>>
      equal;
  std::vector<RankStacks*> heads;
  for (RankStacks& rank : page.ranks) {
    if (rank.threads.empty() || !rank.awaited.empty()) {
      heads.push_back(&rank);
      continue;
    }
    const ThreadStack& main = rank.threads.front();
    // Which of their peers are ranks may be known elsewhere.
    const std::string_view peer = main.on_socket ? std::string_view(main.doing) : "";
    auto& ranks = equal[{rank.role, main.state, peer, rank.note, place_of(rank)}];
    if (ranks.empty()) heads.push_back(&rank);
    ranks.push_back(&rank);
  }
  for (auto& [place, ranks] : equal) {
    if (ranks.size() == 1) continue;
    StackGroup group{Stance::unknown, {ranks.begin(), ranks.end()}};
    RankStacks& head = *ranks.front();
    std::vector<int> numbers = numbers_of(group.ranks);
    std::erase(numbers, head.rank);
    for (auto rank = ranks.begin() + 1; rank != ranks.end(); ++rank) {
      std::ranges::move((*rank)->connections, std::back_inserter(head.connections));
      head.connections_known = std::min(head.connections_known, (*rank)->connections_known);
    }
    double cpu = 0;
    for (const RankStacks* rank : ranks) cpu += rank->cpu * (1 + static_cast<double>(rank->also.size()));
    head.cpu = cpu / static_cast<double>(size_of(group));
    head.host = host_of(group);
    head.threads.front() = common_stack(group);
    head.also = std::move(numbers);
  }
  equal.clear();
  std::vector<RankStacks> merged;
  for (RankStacks* head : heads) merged.push_back(std::move(*head));
  page.ranks = std::move(merged);
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

std::string short_text(const StackPage& page, const std::string& directory) {
  Text text(console_columns);
  const auto groups = group_ranks(page);
  for (std::size_t i = 0; i < std::min(groups.size(), max_shown_groups); ++i)
    add_group(text, groups[i], max_shown_frames, directory);
  if (groups.size() > max_shown_groups)
    text.line(2, concat("and ", groups.size() - max_shown_groups, " more groups of ranks"));
  add_notes(text, page);
  return verdict_line(page, groups) + headline(page) + text.take();
}

std::string full_text(const StackPage& page) {
  Text text(file_columns);
  constexpr std::size_t no_limit = 1'000'000;
  const auto groups = group_ranks(page);
  for (const StackGroup& group : groups) add_group(text, group, no_limit, {});
  add_notes(text, page);
  const auto add_process = [&](const RankStacks& rank, std::string_view whose) {
    text.line(0, "");
    text.line(0, concat(whose, RankName{rank.role, rank.rank}.text(), " (pid ", rank.read_pid(), " ", rank.program,
                        "), ", counted(static_cast<long long>(rank.threads.size()), "thread"),
                        rank.threads_left_out > 0 ? concat(" and ", rank.threads_left_out, " more") : "",
                        rank.note.empty() ? "" : ": " + rank.note));
    for (const ThreadStack& thread : rank.threads) {
      text.line(2, concat("thread ", thread.tid, " (", thread.name, "): ", thread.doing));
      add_frames(text, thread.python, thread.python_left_out, no_limit,
                 [](const PythonFrame& frame) { return line_of(frame, {}); });
      add_frames(text, thread.native, thread.native_left_out, no_limit,
                 [](const NativeFrame& frame) { return "native: " + line_of(frame); });
    }
  };
  for (const RankStacks& rank : page.ranks) {
    add_process(rank, "");
    for (const RankStacks& process : rank.awaited) add_process(process, "child of ");
  }
  return verdict_line(page, groups) + headline(page) + text.take();
}

std::string json_text(const StackPage& page) {
  Json json{{"schema_version", 1}, {"why", page.why}, {"notes", page.notes}, {"groups", Json::array()}};
  json["time_us"] = std::chrono::duration_cast<std::chrono::microseconds>(page.at.time_since_epoch()).count();
  for (const StackGroup& group : group_ranks(page)) json["groups"].push_back(group_json(group));
  // Rank by rank, as the values of a page need many times the memory of its text.
  std::string text = dump(json);
  text.replace(text.size() - 1, 1, R"(,"ranks":[)");
  for (const RankStacks& rank : page.ranks)
    text += concat(&rank == page.ranks.data() ? "" : ",", dump(rank_json(rank)));
  return text + "]}";
}

std::string groups_json(const StackPage& page) {
  Json list = Json::array();
  for (const StackGroup& group : group_ranks(page)) {
    if (list.size() == max_shown_groups) break;
    const RankStacks& first = *group.ranks.front();
    ThreadStack main = first.threads.empty() ? ThreadStack() : common_stack(group);
    main.python.resize(std::min(main.python.size(), max_shown_frames));
    main.native.resize(std::min(main.native.size(), max_shown_frames));
    Json json = group_json(group);
    json["doing"] = first.threads.empty() ? describe_without_threads(first) : describe(main, group.stance);
    json["cpu"] = rounded(mean_cpu(group.ranks));
    json["note"] = note_json(first);
    json["python"] = python_json(main.python);
    json["native"] = native_json(main.native);
    list.push_back(std::move(json));
  }
  return dump(list);
}

}  // namespace ddrun::inspect
