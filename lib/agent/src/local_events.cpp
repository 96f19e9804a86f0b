#include "local_events.hpp"

#include "ddrun/base/text.hpp"
#include "ddrun/rendezvous/event_text.hpp"
#include "failed_message.hpp"

namespace ddrun::agent {

namespace event_text = rendezvous::event_text;

std::string LocalEvents::describe_failure(const WorkerEnd& worker) const {
  return concat("rank ", worker.rank, " on ", host_, " ", describe(worker.status));
}

void LocalEvents::round(const RankAssignment& ranks) {
  ranks_ = ranks;
  ++round_;
  file_.write_line(event_text::round(round_, ranks.restart_count, ranks.world_size, ranks.master_addr, {host_}));
}

void LocalEvents::started() { file_.write_line(event_text::started(round_, ranks_.restart_count, 1)); }

void LocalEvents::failed(const WorkerEnd& worker) {
  file_.write_line(
      event_text::failed(failed_message(round_, worker), {host_, ranks_.master_addr, 0}, describe_failure(worker)));
}

void LocalEvents::ended(bool another_round, const std::string& why) {
  file_.write_line(event_text::ended(round_, another_round, why));
}

void LocalEvents::restart(int restarts, Milliseconds pause, const std::string& why) {
  file_.write_line(event_text::restart(round_, restarts, ranks_.max_restarts, pause, why));
}

void LocalEvents::verdict(const JobResult& result, int exit_code) {
  rendezvous::VerdictMessage verdict;
  verdict.kind = result.verdict;
  verdict.exit_code = exit_code;
  verdict.signal = result.signal;
  verdict.host = host_;
  verdict.node_rank = 0;
  verdict.restarts = ranks_.restart_count;
  verdict.why = result.message;
  if (result.verdict == Verdict::worker_failed && !result.attempts.empty() && result.attempts.back().first_failure) {
    const WorkerEnd& cause = result.attempts.back().workers.at(*result.attempts.back().first_failure);
    verdict.rank = cause.rank;
    verdict.why = describe_failure(cause);
    if (const auto* signaled = std::get_if<Signaled>(&cause.status)) verdict.signal = signaled->signal;
  }
  file_.write_line(event_text::verdict(round_, verdict));
}

}  // namespace ddrun::agent
