#include "causes.hpp"

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <tuple>
#include <utility>

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

int exit_code_or(int code, int otherwise) { return code > 0 && code < 256 ? code : otherwise; }

}  // namespace

std::string seconds_text(Clock::duration time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g s", std::chrono::duration<double>(time).count());
  return text;
}

std::string first_names(std::vector<std::string> names) {
  constexpr std::size_t named = 5;
  if (names.size() > named) {
    const std::size_t more = names.size() - named;
    names.resize(named);
    names.push_back(concat(more, " more"));
  }
  return join(names, ", ");
}

VerdictMessage success() { return {.why = "all workers have ended well"}; }

VerdictMessage worker_failed(const Failed& failure, const Member& member) {
  const ExitStatus status =
      failure.by_signal ? ExitStatus(Signaled{failure.code, failure.core_dumped}) : ExitStatus(Exited{failure.code});
  const std::string what = failure.declared ? truncate_text(failure.why) : describe(status);
  VerdictMessage verdict =
      make_verdict(member, VerdictKind::worker_failed, exit_code_or(shell_code(status), 1),
                   concat(RankName{failure.role, failure.rank}.text(), " on ", member.host, " ", what));
  verdict.rank = failure.rank;
  verdict.role = failure.role;
  if (failure.by_signal) verdict.signal = failure.code;
  return verdict;
}

VerdictMessage ranks_missing(const Member& member) {
  return make_verdict(
      member, VerdictKind::worker_failed, 1,
      concat("the ranks on ", member.host, " have ended, but all those of another machine wait for them in a barrier"));
}

VerdictMessage node_lost(const Member& member, const std::string& how) {
  return make_verdict(member, VerdictKind::node_lost, exit_codes::launcher_failed,
                      concat(describe_with_rank(member), " was lost: ", how));
}

VerdictMessage left(const Member& member, const Leave& leave) {
  if (leave.kind != LeaveKind::signalled) {
    const bool in_time = leave.kind == LeaveKind::cannot_go_on;
    return make_verdict(member, in_time ? VerdictKind::launcher_failed : VerdictKind::timed_out,
                        exit_code_or(leave.code, in_time ? exit_codes::launcher_failed : exit_codes::timed_out),
                        concat(member.host, ": ", leave.text));
  }
  const int signal = leave.code > 0 && leave.code < 128 ? leave.code : SIGTERM;
  VerdictMessage verdict = make_verdict(member, VerdictKind::stopped_by_signal, exit_codes::signal_base + signal,
                                        concat("stopped by ", signal_name(signal), " on ", member.host,
                                               leave.text.empty() ? "" : concat(" (from ", leave.text, ")")));
  verdict.signal = signal;
  return verdict;
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

}  // namespace ddrun::rendezvous::causes

namespace ddrun::rendezvous {

namespace {

constexpr std::size_t max_full_bytes = 64UL << 10U;
constexpr std::size_t max_brief_bytes = 4UL << 10U;

Failure bounded(const Failure& failure) {
  if (failure.full.size() > max_full_bytes) return {};
  Failure kept = failure;
  if (kept.brief.size() > max_brief_bytes) kept.brief.clear();
  kept.key = causes::truncate_text(plain_line(kept.key));
  return kept;
}

}  // namespace

void CauseDetails::set_cause(const Failure& failure) { cause_ = bounded(failure); }

void CauseDetails::add_other(const Member& member, const Failure& failure) {
  const auto order = [](const Failure& one) { return std::tuple(one.full.empty(), !one.explained, one.time_us); };
  if (!failure.own || order(failure) >= order(other_)) return;
  Failure other = bounded(failure);
  if (other.full.empty()) return;
  other_ = std::move(other);
  other_host_ = member.host;
  other_node_rank_ = member.node_rank;
}

bool CauseDetails::other_failed_first() const {
  // Clocks of machines differ, so two reasons are not ordered by time: a reason only takes precedence over a complaint,
  // and over a worker that was stopped.
  const bool gives_way = !cause_.own || (cause_.stopped && other_.explained);
  return gives_way && !cause_.full.empty() && !other_.full.empty();
}

void CauseDetails::describe(VerdictMessage& verdict, std::string Failure::*text) const {
  verdict.cause = cause_.*text;
  verdict.failed_first = held_up_;
  if (!held_up_.failure.empty()) return;
  const bool adds_other = other_failed_first() && !verdict.cause.empty() && !(other_.*text).empty();
  verdict.failed_first = adds_other ? FailedFirst{other_.*text, other_host_, other_node_rank_} : FailedFirst{};
}

std::string CauseDetails::key() const {
  const Failure& failure = other_failed_first() ? other_ : cause_;
  return failure.own ? failure.key : std::string();
}

}  // namespace ddrun::rendezvous
