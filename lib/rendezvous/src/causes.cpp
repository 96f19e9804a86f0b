#include "causes.hpp"

#include <signal.h>

#include <algorithm>
#include <cstdio>

#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::rendezvous::causes {

namespace {

VerdictMessage at(const Seat& seat, VerdictKind kind, int exit_code, std::string why) {
  VerdictMessage verdict;
  verdict.kind = kind;
  verdict.exit_code = exit_code;
  verdict.host = seat.host;
  verdict.node_rank = seat.in_round ? seat.node_rank : -1;
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

VerdictMessage worker_failed(const Failed& failure, const Seat& seat) {
  const ExitStatus status =
      failure.by_signal ? ExitStatus(Signaled{failure.code, failure.core_dumped}) : ExitStatus(Exited{failure.code});
  VerdictMessage verdict = at(seat, VerdictKind::worker_failed, exit_code_or(shell_code(status), 1),
                              concat("rank ", failure.rank, " on ", seat.host, " ", describe(status)));
  verdict.rank = failure.rank;
  if (failure.by_signal) verdict.signal = failure.code;
  return verdict;
}

VerdictMessage node_lost(const Seat& seat, const std::string& how) {
  return at(seat, VerdictKind::node_lost, exit_codes::launcher_failed,
            concat(describe_with_rank(seat), " was lost: ", how));
}

VerdictMessage left(const Seat& seat, const Leave& leave) {
  const int signal = leave.signal > 0 && leave.signal < 128 ? leave.signal : SIGTERM;
  VerdictMessage verdict = at(seat, VerdictKind::stopped_by_signal, exit_codes::signal_base + signal,
                              concat("stopped by ", signal_name(signal), " on ", seat.host,
                                     leave.sender.empty() ? "" : concat(" (from ", leave.sender, ")")));
  verdict.signal = signal;
  return verdict;
}

VerdictMessage aborted(const Seat& seat, const Abort& abort) {
  const bool in_time = abort.kind == AbortKind::cannot_go_on;
  return at(seat, in_time ? VerdictKind::launcher_failed : VerdictKind::timed_out,
            exit_code_or(abort.exit_code, in_time ? exit_codes::launcher_failed : exit_codes::timed_out),
            concat(seat.host, ": ", abort.what));
}

VerdictMessage skewed(const std::vector<const Seat*>& late, Milliseconds allowed) {
  std::vector<std::string> hosts;
  constexpr std::size_t named = 5;
  for (std::size_t i = 0; i < std::min(late.size(), named); ++i) hosts.push_back(late[i]->host);
  if (late.size() > named) hosts.push_back(concat(late.size() - named, " more"));
  return at(*late.front(), VerdictKind::timed_out, exit_codes::timed_out,
            concat("workers on ", join(hosts, ", "), " still ran ", seconds_text(allowed),
                   " after the first node had finished (--exit-skew)"));
}

std::string more_nodes(int wanted) { return counted(wanted, "more node"); }

VerdictMessage too_few(int here, int wanted, Clock::duration waited, const std::string& names) {
  VerdictMessage verdict;
  verdict.kind = VerdictKind::launcher_failed;
  verdict.exit_code = exit_codes::launcher_failed;
  verdict.why = concat(here, " of ", wanted, " nodes were there after ", seconds_text(waited),
                       names.empty() ? "" : concat(": ", names));
  return verdict;
}

}  // namespace ddrun::rendezvous::causes
