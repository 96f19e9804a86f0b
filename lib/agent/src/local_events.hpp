#pragma once

#include <string>

#include "ddrun/agent/events_file.hpp"
#include "ddrun/agent/job_result.hpp"
#include "ddrun/spec/rank_assignment.hpp"

namespace ddrun::agent {

/// --events for a job on one machine, which has no coordinator to tell them: the same lines with the same keys
/// (docs/several-machines.md) as far as they can happen here.
class LocalEvents {
 public:
  LocalEvents(EventsFile& file, std::string host) : file_(file), host_(std::move(host)) {}

  void round(const RankAssignment& ranks);
  void started();
  void failed(const WorkerEnd& worker);
  /// The workers of the round are gone.
  void ended(bool another_round, const std::string& why);
  void restart(int restarts, const std::string& why);
  void verdict(const JobResult& result, int exit_code);

 private:
  EventsFile& file_;
  std::string host_;
  RankAssignment ranks_;
  int round_ = 0;
};

/// "worker_failed", as in the report.
[[nodiscard]] const char* verdict_name(Verdict verdict);

}  // namespace ddrun::agent
