#pragma once

#include <string>

#include "ddrun/agent/events_file.hpp"
#include "ddrun/agent/job_result.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/spec/rank_assignment.hpp"

namespace ddrun::agent {

/// --events for a job on one machine, which has no coordinator to tell them.
class LocalEvents {
 public:
  LocalEvents(EventsFile& file, std::string host) : file_(file), host_(std::move(host)) {}

  void round(const RankAssignment& ranks);
  void started();
  void failed(const WorkerEnd& worker);
  /// The workers of the round are gone.
  void ended(bool another_round, const std::string& why);
  /// `restarts`: with this one; `pause`: before it.
  void restart(int restarts, Milliseconds pause, const std::string& why);
  void verdict(const JobResult& result, int exit_code);

 private:
  [[nodiscard]] std::string describe_failure(const WorkerEnd& worker) const;

  EventsFile& file_;
  std::string host_;
  RankAssignment ranks_;
  rendezvous::Round round_ = 0;
};

}  // namespace ddrun::agent
