#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ddrun/test/files.hpp"

namespace ddrun::test {

/// Calls `condition` until it is true or the time is up; returns its last value.
bool wait_until(const std::function<bool()>& condition, std::chrono::milliseconds limit = std::chrono::seconds(20));

/// Living processes (not zombies) that descend from `root`, itself not included; nearest first.
std::vector<pid_t> descendants_of(pid_t root);

/// Living processes (not zombies) that have `entry` ("NAME=value") in their environment.
std::vector<pid_t> processes_with(const std::string& entry);

/// By SIGSTOP or the like.
bool is_stopped(pid_t pid);

/// How a command ended and what it wrote.
struct Outcome {
  int wait_status = -1;
  std::string out;
  std::string err;
  [[nodiscard]] int code() const;  ///< exit code, or -signal
};

struct RunOptions {
  std::vector<std::pair<std::string, std::string>> env;
  std::string directory;
  std::string input;           ///< written to stdin while the run is waited for; then stdin is closed
  bool inherit_input = false;  ///< stdin stays the test's own
  long descriptor_limit = 0;
  bool own_group = true;
  std::function<void()> in_child;  ///< called last before exec, such as for limits or another stdout
};

/// A program run in the background with collected output. A tag in the environment of all its processes lets the test
/// check that none is left. The destructor kills the rest.
class Run {
 public:
  using Options = RunOptions;
  explicit Run(const std::vector<std::string>& argv, Options options = {});
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  /// Waits for the exit and the end of its output; throws on timeout, which fails the test.
  Outcome wait(std::chrono::milliseconds limit = std::chrono::seconds(30));
  /// The output so far.
  std::string out();
  std::string err();
  /// Waits until stdout contains `text`.
  bool wait_for_out(const std::string& text, std::chrono::milliseconds limit = std::chrono::seconds(20));
  bool wait_for_err(const std::string& text, std::chrono::milliseconds limit = std::chrono::seconds(20));
  void signal(int number) const;
  /// Signals one process of this run; false if `pid` is no longer one. Never signals another process.
  bool signal(pid_t pid, int number) const;  // NOLINT(bugprone-easily-swappable-parameters)
  /// Living processes of this run, the program itself included.
  [[nodiscard]] std::vector<pid_t> living() const;
  /// True as soon as none is left.
  [[nodiscard]] bool all_gone(std::chrono::milliseconds limit = std::chrono::seconds(20)) const;

 private:
  void pump(int timeout_ms);
  void feed();

  pid_t pid_ = -1;
  int in_fd_ = -1;
  int out_fd_ = -1;
  int err_fd_ = -1;
  std::string input_;
  bool reaped_ = false;
  std::string tag_;
  Outcome outcome_;
};

}  // namespace ddrun::test
