#pragma once

#include <sys/types.h>

#include <array>
#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ddrun/agent/job_result.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/logs/output.hpp"
#include "ddrun/process/child_watcher.hpp"
#include "ddrun/process/process_tree.hpp"
#include "ddrun/process/spawner.hpp"
#include "ddrun/spec/launch_spec.hpp"
#include "ddrun/worker_env/worker_environment.hpp"
#include "group_machine.hpp"
#include "preparation.hpp"
#include "stdin_feed.hpp"

namespace ddrun::agent {

/// One worker of the present attempt.
struct Worker {
  enum class Start {
    pending,   ///< not begun, or its program has not been executed
    executed,  ///< it counts as a worker
    failed,    ///< its program could not be executed, or a stop came first; the child may still have to be reaped
  };
  Start start = Start::pending;
  std::optional<process::Spawned> child;  ///< set from its start to its end
  bool ended = false;
  bool group_alive = false;  ///< it has ended, but its process group has members
  Clock::time_point started_at;
  WorkerEnd end;
};

/// The processes of one attempt: starts, signals and kills them. All is borrowed.
class WorkerGroup {
 public:
  /// `preload` is null without --preload.
  WorkerGroup(boost::asio::any_io_executor executor, const LaunchSpec& spec, const Preparation& prepared,
              process::Spawner& launcher, process::Spawner* preload, process::ChildWatcher& watcher,
              logs::Output& output);

  /// Checks, before the first attempt, that the descriptors suffice, if need be without pidfds. Fails with
  /// `unavailable`.
  Result<void> check_descriptors();

  /// Forgets the workers of the attempt before. `ranks`: by program.
  void begin_attempt(const std::vector<RankAssignment>& ranks);

  /// Starts the workers of `part` in order of slots, with environments by program. `should_stop`, which lets events
  /// run, is called between batches and while a program is not executed in time (`process::first_exec_wait`); when it
  /// returns true, starts in progress are killed and the rest is not started. `is_overdue`, asked before and after each
  /// start, ends it in the same way and has to make `should_stop` true. Ends of workers are reported later, by the
  /// watcher.
  Result<void> spawn(Part part, const std::vector<worker_env::WorkerEnvironment>& environments,
                     const std::function<bool()>& should_stop, const std::function<bool()>& is_overdue);

  /// Forgets the workers of the attempt before.
  void clear_workers();

  /// To be called with each end that the watcher reports. Null if it is no worker's.
  Worker* record_exit(const process::ChildEnd& end);

  /// Workers that have not ended.
  [[nodiscard]] int alive_count() const { return alive_count_; }
  [[nodiscard]] std::vector<Worker>& workers() { return workers_; }

  /// To every worker's process group, also after the worker has ended: `numbers`, in this order. A start in progress
  /// gets none: it has no handler.
  void signal(std::initializer_list<int> numbers, const std::set<pid_t>& except = {});
  /// Processes by pid and start time.
  using Strays = std::set<std::pair<pid_t, unsigned long long>>;
  /// SIGTERM, whatever the groups got (daemons handle no other), to each descendant outside the workers' groups that
  /// is not in `signaled`, and adds it there. Reads /proc once.
  void stop_strays(Strays& signaled);
  /// SIGKILL to every descendant, in whatever session or group.
  void kill_all();
  /// Whether a process group of an ended worker has members.
  [[nodiscard]] bool any_group_alive();
  /// Whether a worker has not been reaped or a descendant is left.
  [[nodiscard]] bool anyone_left() const { return process::has_workers(); }

  /// --stdin=RANK, of the first program.
  [[nodiscard]] bool reads_stdin(const Worker& worker) const;
  /// Of the workers, to be stopped at the end of an attempt.
  [[nodiscard]] StdinFeed& input() { return stdin_feed_; }

 private:
  Result<UniqueFd> open_stdin(const Worker& worker, logs::ChildStreams& streams, bool& inherit);
  /// Memory that the spawner borrows until a start in one of its slots is confirmed.
  struct SpawnSlot {
    Worker* worker = nullptr;                  ///< null: free
    const PreparedProgram* program = nullptr;  ///< whose the rest is
    std::vector<std::string> args;
    std::vector<char*> argv;
    worker_env::WorkerEnvironment::Block environment;
  };
  /// The starts in `slot` here and below are those of the spawner.
  Result<void> begin(int slot, Worker& worker, const worker_env::WorkerEnvironment& environment);
  /// Confirms the start in this slot if it has one. False: it needs more time than `limit`.
  Result<bool> confirm(int slot, Milliseconds limit);
  /// The same, and lets events run meanwhile; returns without it if `should_stop` does.
  Result<void> await(int slot, const std::function<bool()>& should_stop);
  /// await() for all slots.
  Result<void> await_all(const std::function<bool()>& should_stop);
  /// Kills what is not confirmed at once.
  void abandon_all();
  /// Confirms a worker whose end was seen first.
  void confirm_ended(const Worker& worker);
  void watch(Worker& worker, process::Spawned child);

  const LaunchSpec& spec_;
  const Preparation& prepared_;
  process::Spawner& launcher_;
  process::Spawner* preload_;
  process::Spawner* spawner_;  ///< of the program that is being started
  process::ChildWatcher& watcher_;
  logs::Output& output_;
  StdinFeed stdin_feed_;
  UniqueFd null_;
  std::size_t pidfds_ = 0;  ///< the first so many workers get one
  std::vector<Worker> workers_;
  std::unordered_map<pid_t, Worker*> by_pid_;
  int alive_count_ = 0;
  std::array<SpawnSlot, process::Spawner::slots> slots_;
  Result<void> start_failure_;  ///< found by record_exit()
};

/// Ranks and pids for -v: "rank 0 pid 123, ranks 1-64 pids 130-193". Consecutive ones are one item; at most `most`
/// items, then "and 900 more". Empty for no workers.
[[nodiscard]] std::string describe_started(const std::vector<std::pair<RankName, pid_t>>& workers, std::size_t most);

/// Logs it: with -v in one line, with -v -v all of it, the programs and their directories.
void log_started(const std::vector<std::pair<RankName, pid_t>>& workers, const Preparation& prepared);

}  // namespace ddrun::agent
