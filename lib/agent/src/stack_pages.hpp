#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "atomic_file.hpp"
#include "ddrun/base/alarm.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/inspect/stack_reader.hpp"
#include "ddrun/job_socket/job_socket.hpp"
#include "ddrun/logs/output.hpp"
#include "job.hpp"
#include "participant.hpp"
#include "worker_group.hpp"

namespace ddrun::agent {

/// Where the ranks of this machine are: for the console before a stop, and for `ddrun stacks`, on the job's socket. All
/// is borrowed; for the agent's thread.
class StackPages : public Participant {
 public:
  /// `on_answer` is called after each answer to `ddrun stacks`.
  StackPages(Job& job, WorkerGroup& group, logs::Output& output, std::function<void()> on_answer);

  /// Reads, writes all threads to a file, shows the page on the console with the file's path, and calls `done`, unless
  /// give_up() came first; after `limit` without a page, which is shown when it is complete, if the job still runs.
  /// One at a time. Of the workers in `slots`; none: all.
  void async_show(const std::string& why, Milliseconds limit, const std::set<int>& slots,
                  std::function<void(const inspect::StackPage*)> done);
  void give_up();

  void open_socket_later();
  void close() override { socket_.close(); }

 private:
  using Targets = std::vector<inspect::StackReader::Target>;
  /// The workers in `slots` that were started; none: all.
  [[nodiscard]] Targets targets(const std::set<int>& slots = {}) const;
  void answer(const job_socket::Request& request, const job_socket::Server::Reply& reply);

  Job& job_;
  WorkerGroup& group_;
  logs::Output& output_;
  inspect::StackReader reader_;
  std::function<void()> on_answer_;
  job_socket::Server socket_;
  /// Tells this job from others: jobs in containers may share a directory and have the same PID.
  const std::string tag_ = concat(random_number());
  unsigned number_ = 0;  ///< of the last async_show()
  Alarm limit_;
  std::function<void(const inspect::StackPage*)> done_;  ///< of the last async_show(), until it is called
};

}  // namespace ddrun::agent
