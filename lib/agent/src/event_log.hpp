#pragma once

#include <string>
#include <vector>

#include "ddrun/agent/job_result.hpp"
#include "ddrun/spec/launch_spec.hpp"
#include "preparation.hpp"

namespace ddrun::agent {

/// --event-log-handler=console: torchrun's events, one JSON object per line on stderr, with its field names:
/// torchelastic.worker.status.<STATE> with source WORKER (START, SUCCEEDED, FAILED, TERMINATED) or AGENT (the last two
/// ends). As with torchrun, `timestamp` is 0 and `metadata.metadata` is JSON inside a string.
class EventLog {
 public:
  /// Writes only if `handler` is "console". `prepared` is borrowed.
  EventLog(const std::string& handler, const Preparation& prepared, std::string backend);

  /// `ranks`: by program.
  void attempt_started(const std::vector<RankAssignment>& ranks);
  void worker_started(const WorkerEnd& worker) const;
  void worker_ended(const WorkerEnd& worker) const;
  void job_ended(const JobResult& result) const;

 private:
  void write(const std::string& state, const std::string& source, const WorkerEnd* worker, double seconds,
             const std::string& error) const;

  bool enabled_;
  const Preparation& prepared_;
  std::string backend_;
  std::vector<RankAssignment> ranks_{1};
};

}  // namespace ddrun::agent
