#pragma once

#include <sys/types.h>

#include <array>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddrun/base/alarm.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/process/launcher.hpp"
#include "ddrun/process/spawner.hpp"

namespace ddrun::preload {

/// Starts Python workers as forks of a server process that has imported modules once (src/server.py; the protocol is in
/// README.md). The server and standby workers are children of this process that count as helpers; begin() makes a
/// standby worker a worker. Where there is none, it starts the program as the launcher does.
///
/// All on the executor's thread; only confirm() and start_server() block, as a Launcher's do. The launcher is borrowed.
class PreloadSpawner final : public process::Spawner {
 public:
  using OnReady = std::function<void(Result<void>)>;

  PreloadSpawner(boost::asio::any_io_executor executor, process::Launcher& launcher);
  PreloadSpawner(const PreloadSpawner&) = delete;
  PreloadSpawner& operator=(const PreloadSpawner&) = delete;

  /// Whether start_server() has to be called: there is no server yet, or a source file of an imported module has
  /// changed; then the server and its standby workers are killed. False after the server was lost.
  [[nodiscard]] bool needs_server();
  /// Starts the server by `plan`, in whose argv the words of the program follow `python -u`; its standard input is not
  /// used. `names`: variables that only workers have. `cgroup`: of the workers, which standby workers enter. `on_ready`
  /// is called once, later, when all modules are imported; it fails with `invalid_argument` if one cannot be preloaded.
  /// Fails as Launcher::spawn().
  Result<void> start_server(process::SpawnPlan plan, const std::vector<std::string>& modules,
                            const std::vector<std::string>& names, const std::string& cgroup, OnReady on_ready);
  /// `on_ready` is called once, later, when there are `count` standby workers, or none can be made. `last`: the server
  /// is not needed after them.
  void fork_workers(int count, bool last, OnReady on_ready);
  /// The pending `on_ready` is called without an error; the server is killed.
  void cancel();
  /// Kills the server and the standby workers. `wait`: blocks until they are reaped.
  void close(bool wait);

  Result<process::Spawned> begin(int slot, const process::SpawnPlan& plan) override;
  Result<bool> confirm(int slot, Milliseconds limit, process::Spawned& child) override;
  void abandon(int slot) override;
  void release_standby() override;
  [[nodiscard]] bool has_pidfd() const override { return launcher_.has_pidfd(); }

  /// From the start of the server until all modules were imported.
  [[nodiscard]] Milliseconds import_time() const { return import_time_; }
  /// Of the server after that, in KiB, without pages of files.
  [[nodiscard]] std::int64_t import_memory() const { return import_memory_; }

 private:
  struct Standby {
    pid_t pid = 0;
    UniqueFd socket;
    bool here = false;  ///< a child of this process, waiting for its assignment
  };
  /// A start in progress.
  struct Start {
    Standby worker;  ///< pid 0: by the launcher, or no start
    process::SpawnPlan plan;
    std::array<UniqueFd, 3> streams;  ///< of the plan
    std::string unsent;               ///< of its assignment
  };

  void read_messages();
  void on_message(std::string_view message);
  void on_forked(const std::vector<std::string>& fields);
  void request_fork();
  void set_fork_timeout();
  void check_forked();
  void finish(Result<void> result);
  /// Kills the server; finish() once it has been reaped.
  void finish_after(pid_t server, Result<void> result);
  /// Workers start without a server from now on.
  void lose_server(const std::string& why);
  void forget_server();
  void add_child(pid_t pid);
  /// Sends what the socket takes of an assignment. False if it is broken.
  static bool send_some(Start& start, const std::vector<int>& descriptors);
  /// In place of a standby worker that does not take its assignment; no other one is used in this attempt.
  Result<bool> start_plainly(int slot, process::Spawned& child);
  Result<void> send(std::string_view message, const std::vector<int>& descriptors = {});

  process::Launcher& launcher_;
  boost::asio::posix::stream_descriptor control_;
  Alarm fork_timeout_;
  OnReady on_ready_;
  pid_t server_ = 0;  ///< 0: none
  bool imported_ = false;
  bool server_here_ = false;  ///< it waits for a request
  bool forking_ = false;
  bool released_ = false;  ///< those that are being forked
  bool last_ = false;
  bool lost_ = false;
  int wanted_ = 0;  ///< standby workers
  Clock::time_point server_started_;
  Milliseconds import_time_{0};
  std::int64_t import_memory_ = 0;
  std::vector<UniqueFd> ends_;  ///< sockets of the workers that are being forked
  std::deque<Standby> standby_;
  std::set<pid_t> children_;                                ///< ever
  std::vector<std::pair<std::string, long long>> sources_;  ///< path and time of change in ns
  std::array<Start, slots> starts_;
  Deadline assignment_deadline_;
};

}  // namespace ddrun::preload
