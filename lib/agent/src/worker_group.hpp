#pragma once

#include <sys/types.h>

#include <array>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
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
#include "ddrun/process/spawner.hpp"
#include "ddrun/spec/launch_spec.hpp"
#include "ddrun/worker_env/worker_environment.hpp"
#include "preparation.hpp"

namespace ddrun::agent {

/// After Ctrl-Z and `bg`, reads of the terminal, and its return to this job, are looked for so often: no event tells of
/// them.
inline constexpr std::chrono::milliseconds background_interval{100};

/// --stdin=all: copies ddrun's stdin to every worker, each at its own pace: the fastest may be 16 MiB ahead of the
/// slowest. Then it has to wait, and if that lasts the slowest are named. A worker that closes its stdin or ends takes
/// no part any more. What was read in one attempt is not read again in the next.
class StdinFeed {
 public:
  explicit StdinFeed(boost::asio::any_io_executor executor);

  /// A descriptor for the stdin of the worker with this rank. For a regular file each gets its own view of it; else a
  /// pipe.
  Result<UniqueFd> open(int rank);
  /// All workers of the attempt have theirs: begin, or go on.
  void start();
  /// The attempt is over: their pipes are closed.
  void stop();

 private:
  struct Reader {
    Reader(boost::asio::any_io_executor executor, int fd, int of_rank) : pipe(std::move(executor), fd), rank(of_rank) {}
    boost::asio::posix::stream_descriptor pipe;
    int rank;
    std::uint64_t at = 0;  ///< it has got the input up to here
    bool waiting = false;  ///< for room in its pipe
  };
  bool open_input();
  void wait_for_input();
  void read_input();
  void on_input_end();
  /// Gives it what there is for it, as far as that goes without waiting; it may be erased.
  void push(std::list<Reader>::iterator reader);
  void push_all();
  /// Forgets what all have got, and reads on if a worker wants more and there is room.
  void read_more();
  [[nodiscard]] std::uint64_t slowest() const;
  void watch_slowest();
  [[nodiscard]] std::uint64_t end() const { return begin_ + backlog_.size(); }

  boost::asio::any_io_executor executor_;
  UniqueFd input_;
  boost::asio::posix::stream_descriptor readable_;  ///< an epoll set with input_ in it
  bool seekable_ = false;
  bool at_end_ = false;
  bool waiting_ = false;
  std::list<Reader> readers_;
  std::string backlog_;      ///< what not all have got yet
  std::uint64_t begin_ = 0;  ///< where it begins
  boost::asio::steady_timer slowest_timer_;
  boost::asio::steady_timer background_timer_;
  bool slowest_watched_ = false;
  bool slow_readers_reported_ = false;
  unsigned generation_ = 0;
};

/// One worker of the present attempt.
struct Worker {
  int local_rank = 0;
  std::optional<process::Spawned> child;  ///< set from its start to its end
  bool ended = false;
  bool group_alive = false;  ///< it has ended, but others live in its process group
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

  /// Starts the workers in order of local rank: the spawn order. `should_stop` is called now and then; when it says
  /// true, the rest is not started. Events of workers that have ended already come later, from the watcher.
  Result<void> spawn_all(const RankAssignment& ranks, const worker_env::WorkerEnvironment& environment,
                         const std::function<bool()>& should_stop);

  /// An attempt begins: those of the one before are over and recorded.
  void clear_workers();

  /// To be called with each end that the watcher reports. Null if it is none of ours.
  Worker* record_exit(const process::ChildEnd& end);

  /// Not yet ended.
  [[nodiscard]] int alive_count() const { return alive_count_; }
  [[nodiscard]] std::vector<Worker>& workers() { return workers_; }

  /// To every worker's process group, also those whose worker has ended but left something in it.
  void signal(int number, const std::set<pid_t>& except = {});
  /// Processes by number and time of birth.
  using Strays = std::set<std::pair<pid_t, unsigned long long>>;
  /// SIGTERM, whatever the groups got (daemons listen to no other), to each descendant outside the workers' groups that
  /// is not among `told`, which it joins. Reads /proc once.
  void stop_strays(Strays& signaled);
  /// SIGKILL to every process that descends from us, wherever it hides.
  void kill_all();
  /// True if something lives in a worker's process group though all workers have ended.
  [[nodiscard]] bool any_group_alive();
  /// True while anything descends from the workers, or one of them has not been reaped.
  [[nodiscard]] bool anyone_left() const { return spawner_.has_processes(); }

  /// The attempt is over and its output is at its end.
  void close_inputs() { stdin_feed_.stop(); }

 private:
  Result<UniqueFd> open_stdin(const Worker& worker, bool& inherit);
  /// What the spawner borrows until a start is confirmed.
  struct Lane {
    Worker* worker = nullptr;  ///< null: free
    std::vector<std::string> args;
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
  int alive_count_ = 0;
  std::array<Lane, process::Spawner::slots> lanes_;
};

/// Which rank is which process, for -v when workers start and for who looks into them later:
/// "rank 0 pid 123, ranks 1-64 pids 130-193". Ranks and pids that go on by one are one item; `most` items at most, and
/// "and 900 more" behind them. Empty for no workers.
[[nodiscard]] std::string describe_started(const std::vector<std::pair<int, pid_t>>& workers, std::size_t most);

/// Says it: with -v in one line, with -v -v all of it, and what each of them runs and where.
void log_started(const std::vector<std::pair<int, pid_t>>& workers, const std::string& program,
                 const std::string& directory);

}  // namespace ddrun::agent
