#include "causes.hpp"

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::rendezvous::causes {

namespace {

VerdictMessage make_verdict(const Member& member, VerdictKind kind, int exit_code, std::string why) {
  VerdictMessage verdict;
  verdict.kind = kind;
  verdict.exit_code = exit_code;
  verdict.host = member.host;
  verdict.node_rank = member.in_round() ? member.node_rank : -1;
  verdict.why = std::move(why);
  return verdict;
}

/// "a, b, c, d, e, 7 more"
std::string first_names(std::vector<std::string> names) {
  constexpr std::size_t named = 5;
  if (names.size() > named) {
    const std::size_t more = names.size() - named;
    names.resize(named);
    names.push_back(concat(more, " more"));
  }
  return join(names, ", ");
}

int exit_code_or(int code, int otherwise) { return code > 0 && code < 256 ? code : otherwise; }

}  // namespace

std::string seconds_text(Clock::duration time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g s", std::chrono::duration<double>(time).count());
  return text;
}

VerdictMessage success() { return {.why = "all workers have ended well"}; }

VerdictMessage worker_failed(const Failed& failure, const Member& member) {
  const ExitStatus status =
      failure.by_signal ? ExitStatus(Signaled{failure.code, failure.core_dumped}) : ExitStatus(Exited{failure.code});
  VerdictMessage verdict = make_verdict(member, VerdictKind::worker_failed, exit_code_or(shell_code(status), 1),
                                        concat("rank ", failure.rank, " on ", member.host, " ", describe(status)));
  verdict.rank = failure.rank;
  if (failure.by_signal) verdict.signal = failure.code;
  return verdict;
}

VerdictMessage node_lost(const Member& member, const std::string& how) {
  return make_verdict(member, VerdictKind::node_lost, exit_codes::launcher_failed,
                      concat(describe_with_rank(member), " was lost: ", how));
}

VerdictMessage left(const Member& member, const Leave& leave) {
  const int signal = leave.signal > 0 && leave.signal < 128 ? leave.signal : SIGTERM;
  VerdictMessage verdict = make_verdict(member, VerdictKind::stopped_by_signal, exit_codes::signal_base + signal,
                                        concat("stopped by ", signal_name(signal), " on ", member.host,
                                               leave.sender.empty() ? "" : concat(" (from ", leave.sender, ")")));
  verdict.signal = signal;
  return verdict;
}

VerdictMessage aborted(const Member& member, const Abort& abort) {
  const bool in_time = abort.kind == AbortKind::cannot_go_on;
  return make_verdict(member, in_time ? VerdictKind::launcher_failed : VerdictKind::timed_out,
                      exit_code_or(abort.exit_code, in_time ? exit_codes::launcher_failed : exit_codes::timed_out),
                      concat(member.host, ": ", abort.what));
}

VerdictMessage skewed(const std::vector<const Member*>& late, Milliseconds allowed) {
  std::vector<std::string> hosts;
  hosts.reserve(late.size());
  for (const Member* member : late) hosts.push_back(member->host);
  return make_verdict(*late.front(), VerdictKind::timed_out, exit_codes::timed_out,
                      concat("workers on ", first_names(std::move(hosts)), " still ran ", seconds_text(allowed),
                             " after the first node had finished (--exit-skew)"));
}

std::string truncate_text(const std::string& text) {
  constexpr std::size_t max_text_bytes = 4UL << 10U;
  return text.size() <= max_text_bytes ? text : concat(text.substr(0, max_text_bytes), " [...]");
}

std::string more_nodes(int wanted) { return counted(wanted, "more node"); }

std::string joining(const std::vector<const Member*>& newcomers) {
  std::vector<std::string> names;
  names.reserve(newcomers.size());
  for (const Member* member : newcomers) names.push_back(describe(*member));
  return concat(first_names(std::move(names)), newcomers.size() == 1 ? " joins" : " join");
}

VerdictMessage too_few(int joined, int wanted, Milliseconds timeout, const std::string& names) {
  VerdictMessage verdict;
  verdict.kind = VerdictKind::launcher_failed;
  verdict.exit_code = exit_codes::launcher_failed;
  verdict.why = concat("only ", joined, " of ", wanted, " machines came within --join-timeout (", seconds_text(timeout),
                       ")", names.empty() ? "" : concat(": ", names));
  return verdict;
}

namespace {

constexpr std::size_t max_abbreviated_bytes = 4096;

void strip_details(nlohmann::ordered_json& worker) {
  if (!worker.is_object()) return;
  const auto empty = [](nlohmann::ordered_json& of, const char* key, const nlohmann::ordered_json& by) {
    if (of.is_object() && of.contains(key)) of[key] = by;
  };
  empty(worker, "stderr_tail", nlohmann::ordered_json::array());
  if (worker.contains("error")) empty(worker["error"], "traceback", nullptr);
  if (worker.contains("last_words")) empty(worker["last_words"], "text", nlohmann::ordered_json::array());
  if (worker.contains("failed_first")) strip_details(worker["failed_first"]);
}

}  // namespace

std::string abbreviate(const std::string& cause) {
  if (cause.empty()) return {};
  auto json = nlohmann::ordered_json::parse(cause, nullptr, false);
  if (json.is_object()) {
    strip_details(json);
    std::string brief = json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
    return brief.size() <= max_abbreviated_bytes ? brief : "";
  }
  return cause.size() <= max_abbreviated_bytes ? cause : "";
}

}  // namespace ddrun::rendezvous::causes

namespace ddrun::rendezvous {

namespace {

using Json = nlohmann::ordered_json;

struct Evidence {
  bool own = false;        ///< not a complaint about peers
  bool stopped = false;    ///< the worker was stopped
  bool explained = false;  ///< it ended by itself, with a reason
  std::int64_t time_us = 0;
  std::string key;
};

std::optional<Evidence> evidence_of(const Json& cause) {
  if (!cause.is_object()) return std::nullopt;
  const auto found = cause.find("evidence");
  if (found == cause.end() || !found->is_object()) return std::nullopt;
  const auto is = [&](const char* key) { return found->contains(key) && (*found)[key] == true; };
  const bool whole = found->contains("own") && (*found)["own"].is_boolean() && found->contains("time_us") &&
                     (*found)["time_us"].is_number_integer();
  if (!whole) return std::nullopt;
  Evidence evidence{is("own"), is("stopped"), is("explained"), (*found)["time_us"].get<std::int64_t>(), {}};
  if (found->contains("key") && (*found)["key"].is_string()) evidence.key = (*found)["key"].get<std::string>();
  return evidence;
}

std::optional<Evidence> evidence_of(const std::string& cause) {
  return evidence_of(Json::parse(cause, nullptr, false));
}

}  // namespace

void CauseDetails::add_other(const std::string& host, std::int32_t node_rank, const std::string& json) {
  if (json.empty()) return;
  Json cause = Json::parse(json, nullptr, false);
  const auto evidence = evidence_of(cause);
  if (!evidence || !evidence->own) return;
  if (const auto kept = evidence_of(other_evidence_)) {
    if (kept->explained > evidence->explained) return;
    if (kept->explained == evidence->explained && kept->time_us <= evidence->time_us) return;
  }
  other_evidence_ = Json{{"evidence", cause["evidence"]}}.dump(-1, ' ', false, Json::error_handler_t::replace);
  // Its report may name a worker that failed before the one that ended first.
  if (cause.contains("failed_first") && cause["failed_first"].is_object()) cause = Json(cause["failed_first"]);
  cause["host"] = host;
  cause["node_rank"] = node_rank;
  other_ = cause.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool CauseDetails::other_failed_first() const {
  const auto ours = evidence_of(cause_);
  const auto other = evidence_of(other_evidence_);
  if (!ours || !other) return false;
  // Clocks of machines differ, so two reasons are not ordered by time: a reason only takes precedence over a complaint,
  // and over a worker that was stopped.
  return !ours->own || (ours->stopped && other->explained);
}

std::string CauseDetails::text() const {
  if (!other_failed_first()) return cause_;
  Json cause = Json::parse(cause_, nullptr, false);
  cause["failed_first"] = Json::parse(other_, nullptr, false);
  return cause.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string CauseDetails::key() const {
  const auto evidence = evidence_of(other_failed_first() ? other_evidence_ : cause_);
  return evidence && evidence->own ? plain_line(evidence->key) : std::string();
}

}  // namespace ddrun::rendezvous
