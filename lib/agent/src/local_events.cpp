#include "local_events.hpp"

#include "ddrun/base/text.hpp"
#include "worker_json.hpp"

namespace ddrun::agent {

void LocalEvents::round(const RankAssignment& ranks) {
  ranks_ = ranks;
  ++round_;
  file_.write_line(one_line({{"event", "round"},
                             {"round", round_},
                             {"restarts", ranks.restart_count},
                             {"nodes", 1},
                             {"world_size", ranks.world_size},
                             {"address", ranks.master_addr},
                             {"hosts", Json::array({host_})}}));
}

void LocalEvents::started() {
  file_.write_line(
      one_line({{"event", "started"}, {"round", round_}, {"restarts", ranks_.restart_count}, {"nodes", 1}}));
}

void LocalEvents::failed(const WorkerEnd& worker) {
  Json json = {{"event", "failed"},
               {"round", round_},
               {"host", host_},
               {"address", ranks_.master_addr},
               {"node_rank", 0},
               {"rank", worker.rank},
               {"local_rank", worker.local_rank},
               {"pid", worker.pid}};
  if (const auto* signaled = std::get_if<Signaled>(&worker.status)) json["signal"] = signaled->signal;
  else json["exit_code"] = std::get<Exited>(worker.status).code;
  json["why"] = concat("rank ", worker.rank, " on ", host_, " ", describe(worker.status));
  file_.write_line(one_line(json));
}

void LocalEvents::ended(bool another_round, const std::string& why) {
  file_.write_line(one_line({{"event", "ended"}, {"round", round_}, {"another_round", another_round}, {"why", why}}));
}

void LocalEvents::restart(int restarts, const std::string& why) {
  file_.write_line(one_line({{"event", "restart"},
                             {"round", round_},
                             {"restarts", restarts},
                             {"max_restarts", ranks_.max_restarts},
                             {"why", why}}));
}

void LocalEvents::verdict(const JobResult& result, int exit_code) {
  const WorkerEnd* cause = nullptr;
  if (result.verdict == Verdict::worker_failed && !result.attempts.empty() && result.attempts.back().first_failure) {
    cause = &result.attempts.back().workers.at(*result.attempts.back().first_failure);
  }
  const auto* signaled = cause != nullptr ? std::get_if<Signaled>(&cause->status) : nullptr;
  const std::string why =
      cause != nullptr ? concat("rank ", cause->rank, " on ", host_, " ", describe(cause->status)) : result.message;
  file_.write_line(one_line({{"event", "verdict"},
                             {"round", round_},
                             {"verdict", verdict_name(result.verdict)},
                             {"exit_code", exit_code},
                             {"signal", signaled != nullptr ? signaled->signal : result.signal},
                             {"host", host_},
                             {"node_rank", 0},
                             {"rank", cause != nullptr ? cause->rank : -1},
                             {"restarts", ranks_.restart_count},
                             {"why", why}}));
}

}  // namespace ddrun::agent
