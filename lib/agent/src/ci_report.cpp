#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "ddrun/agent/ci.hpp"
#include "ddrun/base/bytes.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "evidence.hpp"
#include "worker_json.hpp"

namespace ddrun::agent {

namespace {

// ---- fields of json_report() as text

/// Of a worker: "rank 3", "trainer rank 3".
RankName rank_name(const Json& worker) { return {text_at(worker, "role"), worker.value("rank", -1)}; }

/// The worker that failed first in this attempt; null if none is known.
const Json* failed_worker(const Json& attempt) {
  const Json& rank = attempt["first_failed_rank"];
  RankName first{text_at(attempt, "first_failed_role"), rank.is_null() ? -1 : rank.get<int>()};
  if (attempt["cause"].is_object()) first = rank_name(attempt["cause"]);
  for (const Json& worker : attempt["workers"]) {
    const bool by_itself = !worker.value("success", false) && !worker.value("stopped_by_ddrun", false);
    if (first.rank < 0 ? by_itself : rank_name(worker) == first) return &worker;
  }
  return nullptr;
}

/// The worker whose failure ended the job; null if there is none.
const Json* cause_of(const Json& report) {
  const Json& cause = report["cause"];
  for (const char* key : {"failed_first", "worker"}) {
    if (cause.is_object() && cause[key].is_object()) return &cause[key];
  }
  return nullptr;
}

bool held_up(const Json& worker) { return worker.value("stopped_by_ddrun", false) && worker["why"].is_string(); }

/// "rank 3 exited with code 1"
std::string describe_end(const Json& worker) {
  const std::string rank = rank_name(worker).text();
  if (held_up(worker)) return concat(rank, " ", plain_line(text_at(worker, "why")));
  if (worker.value("stopped_by_ddrun", false)) return rank + " failed first";
  return concat(rank, worker["signal"].is_object() ? " was " : " ", text_at(worker, "ended_how"));
}

}  // namespace

std::string outcome_of(const Json& report) {
  const std::string verdict = text_at(report, "verdict");
  if (verdict == "success") {
    return report.value("output_complete", true) ? "all workers succeeded"
                                                 : "all workers succeeded, but the output is incomplete";
  }
  const Json* const worker = cause_of(report);
  if (verdict == "worker_failed" && worker != nullptr) return describe_end(*worker);
  if (const std::string message = text_at(report, "message"); !message.empty()) return plain_line(message);
  if (verdict == "timed_out") {
    const std::chrono::duration<double> limit(report["timeout_s"].is_number() ? report["timeout_s"].get<double>() : 0);
    return concat("stopped after ", format_duration(std::chrono::duration_cast<std::chrono::nanoseconds>(limit)),
                  ", the limit set with --timeout", worker != nullptr ? "; " + describe_end(*worker) : "");
  }
  if (report["signal"].is_object()) return "stopped by " + text_at(report["signal"], "name");
  return verdict == "worker_failed" ? "the workers failed" : "ddrun could not do its work";
}

namespace {

/// The reason in a few lines of bounded length, without what describe_end() says; may be empty.
std::string reason_of(const Json& worker) {
  const auto end = worker_from_json(one_line(worker));
  if (!end) return {};
  std::vector<std::string> lines = reason_lines(*end);
  if (!end->why.empty() && !held_up(worker)) lines.push_back(plain_line(end->why));
  for (std::string& line : lines) line = cut_line(std::move(line), 500);
  return join(lines, "\n");
}

/// "rank 3 exited with code 1: ValueError: no data"
std::string describe_failure(const Json& worker) {
  const std::string reason = reason_of(worker);
  return describe_end(worker) + (reason.empty() ? "" : ": " + reason);
}

// ---- GitHub and GitLab

/// Escapes as actions/toolkit does.
std::string escaped(std::string_view text, bool property) {
  std::string result;
  for (const char c : text) {
    if (c == '%' || c == '\r' || c == '\n' || (property && (c == ':' || c == ','))) {
      result += '%';
      result += "0123456789ABCDEF"[static_cast<unsigned char>(c) >> 4U];
      result += "0123456789ABCDEF"[static_cast<unsigned char>(c) & 15U];
    } else {
      result += c;
    }
  }
  return result;
}

struct Frame {
  std::string file;  ///< relative to the workspace
  long long line = 0;
};

/// `path` relative to `folder`; empty if it is not below, or in an installed package.
std::string below(const std::filesystem::path& folder, const std::filesystem::path& path) {
  const std::string relative = path.lexically_normal().lexically_relative(folder.lexically_normal()).string();
  if (relative.empty() || relative == "." || relative.starts_with("..")) return {};
  for (const char* const part : {"site-packages/", "dist-packages/", "lib/python3", "lib64/python3"}) {
    if (relative.find(part) != std::string::npos) return {};
  }
  return relative;
}

std::string in_workspace(const std::string& file, const std::string& workspace) {
  if (file.empty() || file.front() == '<' || workspace.empty()) return {};
  std::error_code failed;
  const std::filesystem::path path = std::filesystem::current_path(failed) / file;
  if (file.front() != '/' && ::access(path.c_str(), F_OK) != 0) return {};
  std::filesystem::path folder = workspace;
  if (!folder.has_filename()) folder = folder.parent_path();
  if (std::string found = below(folder, path); !found.empty()) return found;
  // Python names files by the real path of its directory.
  return below(std::filesystem::weakly_canonical(folder, failed), std::filesystem::weakly_canonical(path, failed));
}

/// The innermost frame in the workspace: the last of a traceback, the first of faulthandler's failed thread.
std::optional<Frame> user_frame(const std::vector<std::string>& trace, const std::string& workspace) {
  std::optional<Frame> found;
  bool innermost_first = false;
  for (const std::string& line : trace) {
    if (line.starts_with("Thread 0x") && innermost_first) break;
    if (line.starts_with("Current thread ")) {
      innermost_first = true;
      found.reset();
    }
    const std::size_t at = line.find("File \"");
    if (at == std::string::npos || line.find_first_not_of(" |+-") != at) continue;
    const std::size_t end = line.find("\", line ", at);
    if (end == std::string::npos || (innermost_first && found)) continue;
    const std::size_t digits = end + 8;
    const auto number =
        parse_integer(line.substr(digits, line.find_first_not_of("0123456789", digits) - digits), 1, 1'000'000'000);
    const std::string file = in_workspace(line.substr(at + 6, end - at - 6), workspace);
    if (number && !file.empty()) found = Frame{file, *number};
  }
  return found;
}

std::optional<Frame> place_of(const Json& worker, const std::string& workspace) {
  const auto end = worker_from_json(one_line(worker));
  if (!end) return std::nullopt;
  std::optional<Frame> frame;
  if (end->last_words) frame = user_frame(end->last_words->text, workspace);
  if (!frame && end->error) frame = user_frame(split(end->error->traceback, '\n'), workspace);
  return frame;
}

/// For a cell of a table.
std::string markdown(std::string_view text, std::size_t columns = 1000) {
  std::string cell;
  for (const char c : cut_line(std::string(text), columns)) {
    if (c == '\n' || c == '\r') {
      cell += ' ';
      continue;
    }
    if (std::string_view("\\`*_[]<>#|~&$").find(c) != std::string_view::npos) cell += '\\';
    cell += c;
  }
  return cell;
}

/// "1 exited with code 3; 0,2-3 stopped by ddrun"
std::string outcomes_of(const Json& attempt) {
  constexpr std::size_t most = 8;
  std::map<std::string, std::vector<RankName>> ranks;
  for (const Json& worker : attempt["workers"]) {
    const bool stopped = worker.value("stopped_by_ddrun", false) && !worker.value("success", false);
    ranks[stopped ? "stopped by ddrun" : text_at(worker, "ended_how")].push_back(rank_name(worker));
  }
  std::vector<std::string> parts;
  for (const auto& [outcome, list] : ranks) {
    if (parts.size() < most) parts.push_back(concat(cut_line(fold_workers(list), 200), " ", outcome));
  }
  if (ranks.size() > most) parts.emplace_back("...");
  return join(parts, "; ");
}

}  // namespace

CiService detect_ci(std::string_view asked, const Environment& environment) {
  if (asked == "github") return CiService::github;
  if (asked == "gitlab") return CiService::gitlab;
  if (asked != "auto") return CiService::none;
  CiService found = CiService::none;
  if (environment.get("GITHUB_ACTIONS") == "true") found = CiService::github;
  else if (environment.get("GITLAB_CI") == "true") found = CiService::gitlab;
  return found != CiService::none && environment.has("DDRUN_ROUND") ? CiService::none : found;
}

std::string_view ci_name(CiService service) {
  return service == CiService::github ? "github" : service == CiService::gitlab ? "gitlab" : "none";
}

CiFold ci_fold(CiService service, std::string_view program) {
  const std::string title = concat("ddrun: output of ", cut_line(plain_line(program), 200));
  // ddrun does not see whether a single worker's last line is finished.
  if (service == CiService::github) return {concat("::group::", escaped(title, false), "\n"), "\n::endgroup::\n"};
  if (service != CiService::gitlab) return {};
  const long long now = ::time(nullptr);
  const std::string name = concat("ddrun_", now, "_", ::getpid());
  return {concat("\033[0Ksection_start:", now, ":", name, "[collapsed=true]\r\033[0K", title, "\n"),
          concat("\n\033[0Ksection_end:", now, ":", name, "\r\033[0K\n")};
}

std::string escape_runner_commands(std::string text) {
  if (text.find("::") == std::string::npos && text.find("##[") == std::string::npos) return text;
  std::array<std::byte, 16> random{};
  if (!fill_random(random)) return text;
  const std::string token = in_hex(random);
  return concat("::stop-commands::", token, "\n", text, "::", token, "::\n");
}

std::string github_annotation(const std::string& json, const std::string& workspace) {
  const Json report = Json::parse(json, nullptr, false);
  if (!report.is_object() || report.value("exit_code", 0) == 0 || text_at(report, "verdict") == "stopped_by_signal")
    return {};
  const Json* const worker = cause_of(report);
  const std::string outcome = cut_line(outcome_of(report), 500);
  std::string message = worker != nullptr ? reason_of(*worker) : "";
  if (message.empty()) message = outcome;
  std::string properties;
  if (const auto frame = worker != nullptr ? place_of(*worker, workspace) : std::nullopt) {
    properties = concat("file=", escaped(frame->file, true), ",line=", frame->line, ",");
  }
  const std::string title = concat(cut_line(plain_line(text_at(report, "program")), 200), ": ", outcome);
  return concat("::error ", properties, "title=", escaped(title, true), "::", escaped(message, false), "\n");
}

std::string github_summary(const std::string& json) {
  const Json report = Json::parse(json, nullptr, false);
  if (!report.is_object()) return {};
  const Json* const worker = report.value("exit_code", 0) != 0 ? cause_of(report) : nullptr;
  const Json& attempts = report["attempts"];
  std::string table = concat("| ddrun | ", markdown(plain_line(text_at(report, "program")), 200), " |\n|---|---|\n");
  const auto row = [&](const char* name, const std::string& value) {
    if (!value.empty()) table += concat("| ", name, " | ", markdown(value), " |\n");
  };
  row("Outcome", concat(outcome_of(report), " (exit status ", report.value("exit_code", 0), ")"));
  row("Workers", concat(report.value("world_size", 0), " on ", counted(report.value("node_count", 1), "machine")));
  row("Restarts",
      concat(attempts.empty() ? 0 : attempts.back().value("attempt", 0), " of ", report.value("max_restarts", 0)));
  row("Time", format_duration(std::chrono::duration_cast<std::chrono::nanoseconds>(
                  std::chrono::duration<double>(report.value("ran_s", 0.0)))));
  if (worker != nullptr) row("Cause", describe_failure(*worker));
  if (!attempts.empty()) row("Ranks", outcomes_of(attempts.back()));
  return table + "\n";
}

void report_to_github(const std::string& json) {
  say_text(github_annotation(json, std::string(variable("GITHUB_WORKSPACE").value_or(""))));
  const std::string path(variable("GITHUB_STEP_SUMMARY").value_or(""));
  if (path.empty()) return;
  const std::string text = github_summary(json);
  // O_NONBLOCK: a FIFO without a reader is an error.
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666));
  if (file && write_all(file.get(), text.data(), text.size())) return;
  say(Level::warning,
      fail_errno(Errc::unavailable, concat("cannot write GITHUB_STEP_SUMMARY=", path), errno).value().message);
}

// ---- JUnit: the format of Apache Ant's task, as far as GitLab, Jenkins and others read it

namespace {

/// Escapes UTF-8 for XML 1.0 text and attributes; forbidden characters become U+FFFD.
std::string xml(std::string_view text) {
  std::string result;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '&') result += "&amp;";
    else if (c == '<') result += "&lt;";
    else if (c == '>') result += "&gt;";
    else if (c == '"') result += "&quot;";
    else if (c == '\n' || c == '\r' || c == '\t') result += concat("&#", static_cast<int>(c), ";");
    else if (static_cast<unsigned char>(c) < ' ') result += replacement_character;
    else if (text.substr(at, 3) == "\xEF\xBF\xBE" || text.substr(at, 3) == "\xEF\xBF\xBF")
      at += 2, result += replacement_character;
    else if (const std::size_t hidden = hidden_character(text, at); hidden > 0)
      at += hidden - 1, result += replacement_character;
    else result += c;
  }
  return result;
}

std::string attribute(const char* name, std::string_view value) { return concat(" ", name, "=\"", xml(value), "\""); }

std::string time_of(const Json& json) {
  char text[48];
  std::snprintf(text, sizeof text, "%.3f", json.value("ran_s", 0.0));
  return attribute("time", text);
}

std::string lines_of(const Json& lines) {
  std::string text;
  if (!lines.is_array()) return text;
  for (const Json& line : lines) {
    if (line.is_string()) text += plain_line(line.get<std::string>()) + "\n";
  }
  return text;
}

/// Traceback or message, and the kernel's reason.
std::string failure_text(const Json& worker) {
  std::string text =
      concat(describe_end(worker), " (pid ", worker.value("pid", 0), " on ", text_at(worker, "host"), ")\n");
  if (worker["last_words"].is_object()) text += lines_of(worker["last_words"]["text"]);
  if (worker["error"].is_object()) {
    text += concat(text_at(worker["error"], "message"), "\n", text_at(worker["error"], "traceback"), "\n");
  }
  return held_up(worker) ? text : text + text_at(worker, "why");
}

/// Where the ranks of the attempt were; empty: not read.
std::string stacks_of(const Json& attempt) {
  std::string text;
  for (const Json& group : attempt["stacks"]) {
    std::vector<RankName> ranks;
    for (const Json& rank : group["ranks"]) ranks.push_back({text_at(group, "role"), rank.get<int>()});
    text += concat(name_workers(ranks), ": ", plain_line(text_at(group, "doing")), "\n");
    for (const Json& frame : group[group["python"].empty() ? "native" : "python"]) {
      const std::string function = frame["function"].is_null() ? "?" : text_at(frame, "function");
      const std::string file = text_at(frame, frame.contains("file") ? "file" : "module");
      const std::string line = frame.contains("line") ? concat(":", frame.value("line", 0)) : "";
      text += concat("    ", plain_line(function), " (", plain_line(file), line, ")\n");
    }
  }
  return text;
}

std::string system_err(const std::string& text) {
  return text.empty() ? "" : concat("    <system-err>", xml(text), "</system-err>\n");
}

bool failed_itself(const Json& worker, const Json* cause) {
  if (worker.value("success", false)) return false;
  return !worker.value("stopped_by_ddrun", false) || (cause != nullptr && rank_name(*cause) == rank_name(worker));
}

}  // namespace

std::string junit_report(const std::string& json) {
  const Json report = Json::parse(json, nullptr, false);
  if (!report.is_object()) return {};
  const std::string program = plain_line(text_at(report, "program"));
  const bool failed = report.value("exit_code", 0) != 0;
  const Json* const cause = failed ? cause_of(report) : nullptr;
  const std::string head = concat("  <testcase", attribute("classname", program));
  const Json& attempts = report["attempts"];
  int tests = 0;
  int failures = 0;
  int skipped = 0;
  std::string cases;
  for (const Json& worker : attempts.empty() ? Json::array() : attempts.back()["workers"]) {
    ++tests;
    cases += concat(head, attribute("name", rank_name(worker).text()), time_of(worker), ">\n");
    if (failed_itself(worker, cause)) {
      ++failures;
      std::string reason = reason_of(worker);
      if (reason.empty()) reason = describe_end(worker);
      cases += concat("    <failure", attribute("message", reason), attribute("type", text_at(worker, "ended_how")),
                      ">", xml(failure_text(worker)), "</failure>\n");
    } else if (!worker.value("success", false)) {
      ++skipped;
      cases += "    <skipped message=\"stopped by ddrun\"/>\n";
    }
    cases += system_err(lines_of(worker["stderr_tail"])) + "  </testcase>\n";
  }
  const std::string stacks = attempts.empty() ? "" : stacks_of(attempts.back());
  const bool job_failed = failed && (failures == 0 || !stacks.empty());
  if (job_failed) {
    ++tests;
    const std::string outcome = outcome_of(report);
    cases += concat(head, attribute("name", "job"), time_of(report), ">\n    <error", attribute("message", outcome),
                    attribute("type", text_at(report, "verdict")), ">", xml(outcome), "</error>\n");
    cases += system_err(stacks) + "  </testcase>\n";
  }
  std::string properties;
  const auto property = [&](std::string_view name, std::string_view value) {
    properties += concat("    <property", attribute("name", name), attribute("value", value), "/>\n");
  };
  property("verdict", text_at(report, "verdict"));
  property("exit_code", std::to_string(report.value("exit_code", 0)));
  property("run_id", text_at(report, "run_id"));
  for (std::size_t i = 0; i + 1 < attempts.size(); ++i) {
    const Json* const worker = failed_worker(attempts[i]);
    property(concat("attempt ", attempts[i].value("attempt", 0)),
             worker == nullptr ? "stopped" : describe_failure(*worker));
  }
  std::string started = text_at(report, "started");
  started.resize(std::min<std::size_t>(started.size(), 19));
  const std::string counts =
      concat(attribute("name", program), attribute("tests", std::to_string(tests)),
             attribute("failures", std::to_string(failures)), attribute("errors", job_failed ? "1" : "0"),
             attribute("skipped", std::to_string(skipped)), time_of(report));
  return concat("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites", counts, ">\n <testsuite", counts,
                started.empty() ? "" : attribute("timestamp", started), attribute("hostname", text_at(report, "host")),
                ">\n  <properties>\n", properties, "  </properties>\n", cases, " </testsuite>\n</testsuites>\n");
}

}  // namespace ddrun::agent
