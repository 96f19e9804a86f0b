#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <string>
#include <vector>

#include "ddrun/process/process_tree.hpp"
#include "file_timer.hpp"
#include "job_record.hpp"
#include "worker_group.hpp"

namespace ddrun::agent {

/// Sends processes of the job that are not through in time the signal that they had asked for in that case
/// (FileTimer), and sees to it that the record says why they ended.
class Watchdog {
 public:
  /// `group` and `record` are borrowed.
  Watchdog(boost::asio::any_io_executor executor, WorkerGroup& group, JobRecord& record);

  /// As FileTimer::open.
  Result<void> open(std::string path) { return timer_.open(std::move(path)); }
  [[nodiscard]] const std::string& path() const { return timer_.path(); }
  /// A new attempt begins.
  void forget() { timer_.forget(); }
  void close() { timer_.close(); }
  /// While the workers are stopped nobody is late.
  void stand_still(bool still) { timer_.stand_still(still); }

 private:
  void expired(const std::vector<TimerRequest>& timers);
  void end_late_process(const TimerRequest& timer, const process::ProcessInfo& process);

  WorkerGroup& group_;
  JobRecord& record_;
  FileTimer timer_;
  bool stranger_was_told_ = false;  ///< a timer of a process that is none of ours: once is enough
};

}  // namespace ddrun::agent
