#include "event_log.hpp"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "ddrun/base/messages.hpp"
#include "worker_json.hpp"

namespace ddrun::agent {

using nlohmann::ordered_json;

EventLog::EventLog(const std::string& handler, const Preparation& prepared, std::string backend)
    : enabled_(handler == "console"), prepared_(prepared), backend_(std::move(backend)) {}

void EventLog::attempt_started(const std::vector<RankAssignment>& ranks) { ranks_ = ranks; }

void EventLog::worker_started(const WorkerEnd& worker) const {
  if (enabled_) write("START", "WORKER", &worker, 0, "");
}

void EventLog::worker_ended(const WorkerEnd& worker) const {
  if (!enabled_) return;
  const char* state = worker.success ? "SUCCEEDED" : worker.stopped_by_ddrun ? "TERMINATED" : "FAILED";
  write(state, "WORKER", &worker, std::chrono::duration<double>(worker.ran).count(),
        worker.success ? "" : describe(worker.status));
}

void EventLog::job_ended(const JobResult& result) const {
  if (!enabled_) return;
  const bool success = result.verdict == Verdict::success;
  write(success ? "SUCCEEDED" : "FAILED", "AGENT", nullptr, std::chrono::duration<double>(result.ran).count(),
        success ? "" : result.message);
}

void EventLog::write(const std::string& state, const std::string& source, const WorkerEnd* worker, double seconds,
                     const std::string& error) const {
  const int program = worker != nullptr ? prepared_.places[static_cast<std::size_t>(worker->slot)].program : 0;
  const RankAssignment& ranks = ranks_[static_cast<std::size_t>(program)];
  const ordered_json details = {
      {"group_world_size", ranks.node_count},
      {"entry_point", nullptr},
      {"local_rank", ordered_json::array({worker != nullptr ? worker->local_rank : -1})},
      {"role_rank", ordered_json::array({worker != nullptr ? ranks.role_rank_of(worker->local_rank) : -1})},
      {"role_world_size", ordered_json::array({ranks.role_world_size})}};
  ordered_json metadata = {
      {"run_id", ranks.run_id},
      {"global_rank", worker != nullptr ? ordered_json(worker->rank) : ordered_json(nullptr)},
      {"group_rank", ranks.node_rank},
      {"worker_id", worker != nullptr ? ordered_json(std::to_string(worker->pid)) : ordered_json(nullptr)},
      {"role", prepared_.programs[static_cast<std::size_t>(program)].command.role},
      {"hostname", prepared_.hostname},
      {"state", state},
      {"total_run_time", std::llround(seconds)},
      {"rdzv_backend", backend_},
      {"raw_error", error.empty() ? ordered_json(nullptr) : ordered_json(error)},
      {"metadata", details.dump()},
      {"agent_restarts", ranks.restart_count},
      {"duration_ms", nullptr}};
  const ordered_json line = {{"name", "torchelastic.worker.status." + state},
                             {"source", source},
                             {"timestamp", 0},
                             {"metadata", std::move(metadata)}};
  say_text(json_for_terminal(line.dump(-1, ' ', false, ordered_json::error_handler_t::replace)) + "\n");
}

}  // namespace ddrun::agent
