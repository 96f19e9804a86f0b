#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>
#include <tuple>
#include <utility>

#include "ddrun/base/messages.hpp"
#include "stack_groups.hpp"
#include "verdict.hpp"

// A page as text and as JSON.

namespace ddrun::inspect {

namespace {

using Json = nlohmann::json;

constexpr std::size_t max_shown_groups = 10;
constexpr std::size_t max_shown_frames = 20;
constexpr std::size_t max_shown_children = 3;
constexpr std::size_t max_shown_blocked = 3;
constexpr int function_columns = 28;
/// Of a line on the console, and in a file.
constexpr std::size_t console_columns = 100;
constexpr std::size_t file_columns = 400;

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

/// A line for a frame, or for several in a row.
struct FrameLine {
  std::string text;
  std::size_t frames = 1;
};

/// With `directory` as in short_path().
std::vector<FrameLine> lines_of(const std::vector<PythonFrame>& frames, std::string_view directory) {
  std::vector<FrameLine> lines;
  for (const PythonFrame& frame : frames) lines.push_back({line_of(frame, directory)});
  return lines;
}

/// "sleep, libc.so.6 (4 frames without names)" for several in a row that have none: addresses tell little.
std::vector<FrameLine> lines_of(const std::vector<NativeFrame>& frames) {
  std::vector<FrameLine> lines;
  for (std::size_t i = 0; i < frames.size();) {
    std::size_t end = i;
    std::vector<std::string> places;
    for (; end < frames.size() && frames[end].function.empty(); ++end) {
      std::string place(frames[end].module ? file_name(frames[end].module->path) : "no file");
      if (std::ranges::find(places, place) == places.end()) places.push_back(std::move(place));
    }
    const std::size_t unnamed = end - i;
    if (unnamed > 1) lines.push_back({concat(join(places, ", "), " (", unnamed, " frames without names)"), unnamed});
    else lines.push_back({line_of(frames[i])});
    i = std::max(end, i + 1);
  }
  return lines;
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
void add_frames(Text& text, const std::vector<FrameLine>& lines, std::size_t left_out, std::size_t limit) {
  const std::size_t outer = lines.size() > limit ? limit / 3 : 0;
  const std::size_t inner = lines.size() > limit ? limit - outer - 1 : lines.size();
  std::size_t between = 0;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const bool is_shown = i < inner || i >= lines.size() - outer;
    if (!is_shown) between += lines[i].frames;
    else if (between > 0) text.line(4, concat("... ", std::exchange(between, 0), " frames"));
    if (is_shown) text.line(4, lines[i].text);
  }
  if (left_out > 0) text.line(4, concat("... at least ", counted(static_cast<long long>(left_out), "more frame")));
}

std::string cpu_text(const StackGroup& group) {
  return concat(std::lround(100 * mean_cpu(group.ranks)), " % CPU", size_of(group) > 1 ? " each" : "");
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
  add_frames(text, lines_of(main.python, directory), main.python_left_out, limit);
  if (main.python.empty()) {
    add_frames(text, lines_of(main.native), main.native_left_out, limit);
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

std::string headline(const StackPage& page) {
  return concat("where the ranks of ", page.is_whole_job ? "the job" : "this machine", " are",
                page.why.empty() ? "" : ", ", page.why, ":\n");
}

Json role_json(const RankStacks& rank) { return rank.role.empty() ? Json(nullptr) : Json(rank.role); }

Json host_json(const std::string& host) { return host.empty() ? Json(nullptr) : Json(host); }

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
      add_frames(text, lines_of(thread.python, {}), thread.python_left_out, no_limit);
      std::vector<FrameLine> native;
      for (const NativeFrame& frame : thread.native) native.push_back({"native: " + line_of(frame)});
      add_frames(text, native, thread.native_left_out, no_limit);
    }
  };
  for (const RankStacks& rank : page.ranks) {
    add_process(rank, "");
    for (const RankStacks& process : rank.awaited) add_process(process, "child of ");
  }
  return verdict_line(page, groups) + headline(page) + text.take();
}

bool adds_to(const std::string& short_page, const std::string& full_page, const StackPage& page) {
  const auto is_shown = [](const RankStacks& rank) {
    const bool has_python = !rank.threads.empty() && !rank.threads.front().python.empty();
    return rank.threads.size() <= 1 && rank.threads_left_out == 0 && !has_python && rank.awaited.empty();
  };
  return !page.is_named || !full_page.starts_with(short_page) || !std::ranges::all_of(page.ranks, is_shown);
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
