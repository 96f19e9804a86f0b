#include "ddrun/agent/report.hpp"

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "atomic_file.hpp"
#include "ddrun/agent/ci.hpp"
#include "ddrun/agent/job_result.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/shared_output.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/rendezvous/event_text.hpp"
#include "evidence.hpp"
#include "worker_json.hpp"

namespace ddrun::agent {

namespace {

/// Of quoted lines. A terminal that is narrower than usual wraps them; a file is read in a viewer.
std::size_t console_columns() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 ? std::max<std::size_t>(size.ws_col, 100) : 300;
}

/// Adds the workers that another node reported for the same round.
void add_other_node(Json& workers, const NodeAttempt& node) {
  const Json others = Json::parse(node.workers, nullptr, false);
  if (!others.is_array()) return;
  for (const Json& one : others) {
    if (!one.is_object()) continue;
    Json worker = one;
    worker["host"] = node.host;
    worker["node_rank"] = node.node_rank;
    workers.push_back(std::move(worker));
  }
}

const char* name(EvidenceKind kind) {
  switch (kind) {
    case EvidenceKind::end: return "end";
    case EvidenceKind::error_file: return "error_file";
    case EvidenceKind::last_words: return "last_words";
    case EvidenceKind::stack: return "stack";
  }
  return "";
}

Json attempt_cause_json(const AttemptResult& attempt) {
  if (!attempt.cause) return nullptr;
  const WorkerEnd& worker = attempt.workers.at(*attempt.cause);
  return {{"role", text_or_null(worker.role)},
          {"rank", worker.rank},
          {"evidence", name(attempt.cause_evidence.kind)},
          {"time", utc(attempt.cause_evidence.at)},
          {"reason", text_or_null(short_reason(worker))}};
}

using OtherNodes = std::multimap<std::uint64_t, const NodeAttempt*>;

Json attempt_json(const AttemptResult& attempt, const JobResult& result, const OtherNodes& others) {
  Json json;
  json["attempt"] = attempt.attempt;
  json["ran_s"] = seconds(attempt.ran);
  json["first_failed_role"] = nullptr;
  json["first_failed_rank"] = nullptr;
  if (attempt.first_failure) {
    const WorkerEnd& first = attempt.workers.at(*attempt.first_failure);
    json["first_failed_role"] = text_or_null(first.role);
    json["first_failed_rank"] = first.rank;
  }
  json["cause"] = attempt_cause_json(attempt);
  json["stacks"] = attempt.stacks.empty() ? Json::array() : Json::parse(attempt.stacks);
  Json workers = Json::array();
  for (const WorkerEnd& worker : attempt.workers) {
    workers.push_back(worker_json(worker));
    workers.back()["host"] = result.host;
    workers.back()["node_rank"] = attempt.node_rank;
  }
  const auto [begin, end] = others.equal_range(attempt.round);
  for (auto node = begin; node != end; ++node) {
    if (node->second->node_rank != attempt.node_rank) add_other_node(workers, *node->second);
  }
  // Program by program, if there are several, which have one machine.
  if (result.programs.size() < 2) {
    const auto rank = [](const Json& worker) { return worker.value("rank", -1); };
    std::stable_sort(workers.begin(), workers.end(), [&](const Json& a, const Json& b) { return rank(a) < rank(b); });
  }
  json["workers"] = std::move(workers);
  return json;
}

Json cause_json(JobCause cause) {
  Json json;
  // No worker has ended the job, but one has held it up.
  if (!cause.worker && cause.failed_first) {
    cause.worker = std::exchange(cause.failed_first, std::nullopt);
    cause.host = cause.failed_first_host;
    cause.node_rank = -1;
  }
  json["why"] = cause.why;
  json["host"] = text_or_null(cause.host);
  json["node_rank"] = cause.node_rank >= 0 ? Json(cause.node_rank) : Json(nullptr);
  json["worker"] = cause.worker ? worker_json(*cause.worker) : Json(nullptr);
  json["failed_first"] = nullptr;
  if (cause.failed_first) {
    json["failed_first"] = worker_json(*cause.failed_first);
    json["failed_first"]["host"] = text_or_null(cause.failed_first_host);
  }
  return json;
}

/// What ended a job of one machine.
JobCause local_cause(const JobResult& result) {
  JobCause cause;
  cause.host = result.host;
  cause.node_rank = 0;
  if (result.attempts.empty()) return cause;
  const AttemptResult& last = result.attempts.back();
  const auto ended = last.first_failure ? last.first_failure : last.cause;
  if (ended) cause.worker = last.workers.at(*ended);
  if (last.cause && last.cause != ended) {
    cause.failed_first = last.workers.at(*last.cause);
    cause.failed_first_host = result.host;
  }
  return cause;
}

Json command_json(const std::optional<CommandEnd>& end) {
  if (!end) return nullptr;
  const auto* signaled = std::get_if<Signaled>(&end->status);
  return {{"exit_code", signaled == nullptr ? Json(shell_code(end->status)) : Json(nullptr)},
          {"signal", signaled == nullptr ? Json(nullptr) : signal_json(signaled->signal)},
          {"ran_s", seconds(end->ran)},
          {"runs", end->runs}};
}

std::string report_text(const Json& report) {
  // Workers' output may contain invalid UTF-8, which becomes the replacement character.
  return json_for_terminal(report.dump(2, ' ', false, Json::error_handler_t::replace)) + "\n";
}

}  // namespace

std::string json_report(const JobResult& result) {
  Json json;
  json["schema_version"] = 1;
  json["verdict"] = rendezvous::event_text::name(result.verdict);
  json["exit_code"] = exit_code(result);
  json["signal"] = nullptr;
  json["signal_sender"] = nullptr;
  if (result.verdict == Verdict::stopped_by_signal) {
    json["signal"] = signal_json(result.signal);
    json["signal_sender"] = text_or_null(result.signal_sender);
  }
  json["message"] = text_or_null(result.message);
  json["run_id"] = result.run_id;
  json["host"] = result.host;
  json["program"] = result.program;
  json["programs"] = Json::array();
  for (const ProgramResult& one : result.programs) {
    json["programs"].push_back({{"role", one.role},
                                {"program", one.name},
                                {"service", one.is_service},
                                {"workers", one.workers},
                                {"world", one.world ? Json(*one.world) : Json(nullptr)}});
  }
  json["log_dir"] = text_or_null(result.log_dir);
  json["world_size"] = result.world_size;
  json["node_count"] = result.node_count;
  json["cause"] = nullptr;
  if (result.verdict != Verdict::success) json["cause"] = cause_json(result.cause.value_or(local_cause(result)));
  json["max_restarts"] = result.max_restarts;
  json["timeout_s"] = result.timeout.count() > 0 ? Json(seconds(result.timeout)) : Json(nullptr);
  json["started"] = utc(result.started);
  json["ran_s"] = seconds(result.ran);
  json["log_bytes_lost"] = result.log_bytes_lost;
  json["log_error"] = text_or_null(result.log_error);
  json["console_bytes_lost"] = result.console_bytes_lost;
  json["console_error"] = text_or_null(result.console_error);
  json["output_complete"] = result.output_complete();
  json["stacks"] = result.stack_files;
  json["before"] = command_json(result.before);
  json["after"] = command_json(result.after);
  json["preload"] = result.preload ? preload_json(*result.preload) : Json(nullptr);
  json["attempts_left_out"] = result.attempts_left_out;
  OtherNodes others;
  for (const NodeAttempt& node : result.other_nodes) others.emplace(node.round, &node);
  json["attempts"] = Json::array();
  for (const AttemptResult& attempt : result.attempts)
    json["attempts"].push_back(attempt_json(attempt, result, others));
  if (result.verdict != Verdict::success) {
    if (result.message.empty()) json["message"] = outcome_of(json);
    if (!result.cause) json["cause"]["why"] = json["message"];
  }
  return report_text(json);
}

std::string add_lost_output(const std::string& json, std::uint64_t bytes, const std::string& why) {
  Json report = Json::parse(json, nullptr, false);
  if (!report.is_object()) return json;
  report["console_bytes_lost"] = report.value("console_bytes_lost", std::uint64_t{0}) + bytes;
  report["console_error"] = why;
  report["output_complete"] = false;
  return report_text(report);
}

Result<void> check_report_file(const std::string& path) {
  if (auto usable = check_named_descriptor("--report", path); !usable || named_descriptor(path) >= 0) return usable;
  struct stat info {};
  const bool exists = ::stat(path.c_str(), &info) == 0;
  if (exists && S_ISDIR(info.st_mode))
    return fail(Errc::invalid_argument, concat("--report=", path, ": is a directory"));
  if (exists && !S_ISREG(info.st_mode)) return {};
  const std::size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  if (::access(directory.c_str(), W_OK | X_OK) != 0) {
    return fail_errno(Errc::unavailable, concat("--report=", path, ": cannot write in ", directory), errno);
  }
  return {};
}

Result<void> write_report(const std::string& path, const std::string& json) {
  const std::string text = path.ends_with(".xml") ? junit_report(json) : json;
  auto written = write_file_atomically(path, text);
  if (!written && written.error().cause.value() == ENOENT) {
    // The directory was removed since the job began.
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
    written = write_file_atomically(path, text);
  }
  if (!written) return fail(written.error().code, "--report: " + written.error().message, written.error().cause);
  return written;
}

void write_reports(JobResult& result, const ReportSinks& sinks) {
  result.code = exit_code(result);
  const auto fails = [&result] {
    if (result.code == 0) result.code = exit_codes::launcher_failed;
  };
  const bool in_github = sinks.ci == CiService::github;
  std::string text = failure_report(result, sinks.color, console_columns());
  if (in_github && !text.empty()) text = escape_runner_commands(std::move(text));
  if (!text.empty() && (sinks.shows_cause || !result.cause) && !say_text(text)) fails();
  result.add_lost_output(dropped_output());
  const std::string json = !sinks.files.empty() || in_github ? json_report(result) : std::string();
  // A job that was not started may have failed because of this file, whose directory must not be made then.
  const bool refused = result.verdict == Verdict::launcher_failed && result.attempts.empty();
  for (const std::string& file : sinks.files) {
    if (refused && !check_report_file(file)) continue;
    auto written = write_report(file, json);
    if (!written && !refused) {
      say_error(written.error().message);
      fails();
    }
  }
  if (in_github && result.is_whole_job && !sinks.is_part) report_to_github(json);
}

}  // namespace ddrun::agent
