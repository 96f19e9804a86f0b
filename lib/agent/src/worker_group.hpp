#pragma once

#include <sys/types.h>

#include <array>
#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ddrun/agent/job_result.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/logs/output.hpp"
#include "ddrun/process/child_watcher.hpp"
#include "ddrun/process/spawner.hpp"
#include "ddrun/spec/launch_spec.hpp"
#include "ddrun/worker_env/worker_environment.hpp"
#include "preparation.hpp"
#include "stdin_feed.hpp"

namespace ddrun::agent {

/// One worker of the present attempt.
struct Worker {
  int local_rank = 0;
  std::optional<process::Spawned> child;  ///< set from its start to its end
  bool ended = false;
  bool left_group = false;  ///< it has ended, but others live in its process group
  Clock::time_point started_at;
  WorkerEnd end;
};

/// The processes of one attempt: starts, signals, kills them, and knows whether anything is left. Decides nothing.
class WorkerGroup {
 public:
  WorkerGroup(boost::asio::any_io_executor executor, const LaunchSpec& spec, const Preparation& prepared,
              process::Spawner& spawner, process::ChildWatcher& watcher, logs::Output& output);

  /// Checks that the descriptors suffice, and gives up pidfds if only so they do. Before the first attempt.
  Result<void> check_descriptors();

  /// Starts the workers in order of local rank: the spawn order. `pause` is called now and then; when it says true, the
  /// rest is not started. Events of workers that have ended already come later, from the watcher.
  Result<void> spawn_all(const RankAssignment& ranks, const worker_env::WorkerEnvironment& environment,
                         const std::function<bool()>& pause);

  /// An attempt begins: those of the one before are over and recorded.
  void forget_workers();

  /// To be called with each end that the watcher reports. Null if it is none of ours.
  Worker* take_end(const process::ChildEnd& end);

  /// Not yet ended.
  [[nodiscard]] int living() const { return living_; }
  [[nodiscard]] std::vector<Worker>& workers() { return workers_; }

  /// To every worker's process group, also those whose worker has ended but left something in it.
  void signal(int number);
  /// SIGKILL to every process that descends from us, wherever it hides.
  void kill_everything();
  /// True if something lives in a worker's process group though all workers have ended.
  [[nodiscard]] bool somebody_in_a_group();
  /// True while anything descends from the workers, or one of them has not been reaped.
  [[nodiscard]] bool anyone_left() const { return spawner_.anyone_left(); }

  /// The attempt is over and its output is at its end.
  void close_inputs() { stdin_feed_.stop(); }

 private:
  Result<UniqueFd> open_stdin(const Worker& worker, bool& inherit);
  /// What the spawner borrows until a start is confirmed.
  struct Lane {
    Worker* worker = nullptr;  ///< null: free
    std::vector<std::string> words;
    std::vector<char*> argv;
    worker_env::WorkerEnvironment::Block environment;
  };
  Result<void> begin(int lane, Worker& worker, const RankAssignment& ranks,
                     const worker_env::WorkerEnvironment& environment);
  Result<void> confirm(int lane);
  /// Every start that was begun is confirmed; the first error of these.
  Result<void> confirm_all();

  const LaunchSpec& spec_;
  const Preparation& prepared_;
  process::Spawner& spawner_;
  process::ChildWatcher& watcher_;
  logs::Output& output_;
  StdinFeed stdin_feed_;
  UniqueFd null_;
  std::size_t pidfds_ = 0;  ///< so many workers, the first ones, get one
  std::vector<Worker> workers_;
  std::unordered_map<pid_t, Worker*> by_pid_;
  int living_ = 0;
  std::array<Lane, process::Spawner::lanes> lanes_;
};

/// Which rank is which process, for -v when workers start and for who looks into them later:
/// "rank 0 pid 123, ranks 1-64 pids 130-193". Ranks and pids that go on by one are one item; `most` items at most, and
/// "and 900 more" behind them. Empty for no workers.
[[nodiscard]] std::string started_text(const std::vector<std::pair<int, pid_t>>& workers, std::size_t most);

/// Says it: with -v in one line, with -v -v all of it, and what each of them runs and where.
void say_started(const std::vector<std::pair<int, pid_t>>& workers, const std::string& program,
                 const std::string& directory);

}  // namespace ddrun::agent
