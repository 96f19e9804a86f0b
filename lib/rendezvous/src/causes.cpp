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

VerdictMessage at(const Member& member, VerdictKind kind, int exit_code, std::string why) {
  VerdictMessage verdict;
  verdict.kind = kind;
  verdict.exit_code = exit_code;
  verdict.host = member.host;
  verdict.node_rank = member.in_round ? member.node_rank : -1;
  verdict.why = std::move(why);
  return verdict;
}

/// "a, b, c, d, e, 7 more"
std::string some_of(std::vector<std::string> names) {
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

VerdictMessage worker_failed(const Failed& failure, const Member& member) {
  const ExitStatus status =
      failure.by_signal ? ExitStatus(Signaled{failure.code, failure.core_dumped}) : ExitStatus(Exited{failure.code});
  VerdictMessage verdict = at(member, VerdictKind::worker_failed, exit_code_or(shell_code(status), 1),
                              concat("rank ", failure.rank, " on ", member.host, " ", describe(status)));
  verdict.rank = failure.rank;
  if (failure.by_signal) verdict.signal = failure.code;
  return verdict;
}

VerdictMessage node_lost(const Member& member, const std::string& how) {
  return at(member, VerdictKind::node_lost, exit_codes::launcher_failed,
            concat(describe_with_rank(member), " was lost: ", how));
}

VerdictMessage left(const Member& member, const Leave& leave) {
  const int signal = leave.signal > 0 && leave.signal < 128 ? leave.signal : SIGTERM;
  VerdictMessage verdict = at(member, VerdictKind::stopped_by_signal, exit_codes::signal_base + signal,
                              concat("stopped by ", signal_name(signal), " on ", member.host,
                                     leave.sender.empty() ? "" : concat(" (from ", leave.sender, ")")));
  verdict.signal = signal;
  return verdict;
}

VerdictMessage aborted(const Member& member, const Abort& abort) {
  const bool in_time = abort.kind == AbortKind::cannot_go_on;
  return at(member, in_time ? VerdictKind::launcher_failed : VerdictKind::timed_out,
            exit_code_or(abort.exit_code, in_time ? exit_codes::launcher_failed : exit_codes::timed_out),
            concat(member.host, ": ", abort.what));
}

VerdictMessage skewed(const std::vector<const Member*>& late, Milliseconds allowed) {
  std::vector<std::string> hosts;
  hosts.reserve(late.size());
  for (const Member* member : late) hosts.push_back(member->host);
  return at(*late.front(), VerdictKind::timed_out, exit_codes::timed_out,
            concat("workers on ", some_of(std::move(hosts)), " still ran ", seconds_text(allowed),
                   " after the first node had finished (--exit-skew)"));
}

std::string more_nodes(int wanted) { return counted(wanted, "more node"); }

std::string joining(const std::vector<const Member*>& newcomers) {
  std::vector<std::string> names;
  names.reserve(newcomers.size());
  for (const Member* member : newcomers) names.push_back(describe(*member));
  return concat(some_of(std::move(names)), newcomers.size() == 1 ? " joins" : " join");
}

VerdictMessage too_few(int here, int wanted, Clock::duration waited, const std::string& names) {
  VerdictMessage verdict;
  verdict.kind = VerdictKind::launcher_failed;
  verdict.exit_code = exit_codes::launcher_failed;
  verdict.why = concat(here, " of ", wanted, " nodes were there after ", seconds_text(waited),
                       names.empty() ? "" : concat(": ", names));
  return verdict;
}

namespace {

constexpr std::size_t most_in_brief = 4096;

void make_brief(nlohmann::ordered_json& worker) {
  if (!worker.is_object()) return;
  const auto empty = [](nlohmann::ordered_json& of, const char* key, const nlohmann::ordered_json& by) {
    if (of.is_object() && of.contains(key)) of[key] = by;
  };
  empty(worker, "stderr_tail", nlohmann::ordered_json::array());
  if (worker.contains("error")) empty(worker["error"], "traceback", nullptr);
  if (worker.contains("last_words")) empty(worker["last_words"], "text", nlohmann::ordered_json::array());
  if (worker.contains("failed_first")) make_brief(worker["failed_first"]);
}

}  // namespace

std::string in_brief(const std::string& cause) {
  auto json = nlohmann::ordered_json::parse(cause, nullptr, false);
  if (json.is_object()) {
    make_brief(json);
    std::string brief = json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
    return brief.size() <= most_in_brief ? brief : "";
  }
  return cause.size() <= most_in_brief ? cause : "";
}

}  // namespace ddrun::rendezvous::causes

namespace ddrun::rendezvous {

namespace {

using Json = nlohmann::ordered_json;

struct Evidence {
  bool own = false;        ///< no complaint about others
  bool stopped = false;    ///< of a worker that had not ended by itself
  bool explained = false;  ///< of one that had, and said why
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

void CauseDetails::of_another(const std::string& host, std::int32_t node_rank, const std::string& json) {
  if (json.empty()) return;
  Json cause = Json::parse(json, nullptr, false);
  const auto evidence = evidence_of(cause);
  if (!evidence || !evidence->own) return;
  if (const auto kept = evidence_of(evidence_of_another_)) {
    if (kept->explained > evidence->explained) return;
    if (kept->explained == evidence->explained && kept->time_us <= evidence->time_us) return;
  }
  evidence_of_another_ = Json{{"evidence", cause["evidence"]}}.dump(-1, ' ', false, Json::error_handler_t::replace);
  // It may itself have another worker that failed before the one that ended first.
  if (cause.contains("failed_first") && cause["failed_first"].is_object()) cause = Json(cause["failed_first"]);
  cause["host"] = host;
  cause["node_rank"] = node_rank;
  of_another_ = cause.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool CauseDetails::is_another() const {
  const auto mine = evidence_of(of_cause_);
  const auto another = evidence_of(evidence_of_another_);
  if (!mine || !another) return false;
  // Clocks of machines differ: a reason is not compared with a reason, only with complaints, and what a worker said
  // that may have gone on with the end of one.
  return !mine->own || (mine->stopped && another->explained);
}

std::string CauseDetails::text() const {
  if (!is_another()) return of_cause_;
  Json cause = Json::parse(of_cause_, nullptr, false);
  cause["failed_first"] = Json::parse(of_another_, nullptr, false);
  return cause.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string CauseDetails::key() const {
  const auto evidence = evidence_of(is_another() ? evidence_of_another_ : of_cause_);
  return evidence && evidence->own ? plain_line(evidence->key) : std::string();
}

}  // namespace ddrun::rendezvous
