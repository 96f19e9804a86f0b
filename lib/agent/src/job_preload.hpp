#pragma once

#include <functional>

#include "ddrun/base/alarm.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/logs/output.hpp"
#include "ddrun/preload/preload_spawner.hpp"
#include "ddrun/process/job_cgroup.hpp"
#include "job.hpp"
#include "participant.hpp"

namespace ddrun::agent {

/// --preload on this machine: the server's environment and output, and when workers are forked. All is borrowed.
class JobPreload : public Participant, public StartStep {
 public:
  JobPreload(Job& job, logs::Output& output, process::JobCgroup& cgroup);

  [[nodiscard]] process::Spawner& spawner() { return spawner_; }
  /// Gets standby workers for the next attempt ready; fails if a module cannot be preloaded.
  void begin(Done done) override;
  void cancel(int /*signal*/) override { spawner_.cancel(); }
  /// To be called when all workers of an attempt have been started: forks those of a restart.
  void on_workers_started();
  /// Before the job's cgroup is killed: new standby workers would enter it.
  void cancel_refill() { refill_.cancel(); }
  void close() override { spawner_.close(true); }

 private:
  Result<void> start_server(std::function<void(const Result<void>&)> on_ready);
  /// For -v, --events and the report.
  void record_import();
  [[nodiscard]] bool may_restart() const;
  void fork(std::function<void(const Result<void>&)> on_ready);

  Job& job_;
  logs::Output& output_;
  process::JobCgroup& cgroup_;
  preload::PreloadSpawner spawner_;
  Alarm refill_;
};

}  // namespace ddrun::agent
