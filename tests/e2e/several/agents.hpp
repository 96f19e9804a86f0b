#pragma once

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../job.hpp"
#include "ddrun/test/ports.hpp"

namespace ddrun::test {

inline constexpr const char* job_secret = "a secret for tests only, and long";

/// The agents of one job, on this machine: the same endpoint and secret, each with its own options.
class Agents {
 public:
  /// Without a port they have no endpoint: something else says where they meet.
  explicit Agents(Words common, std::optional<int> port = free_port()) : common_(std::move(common)), port_(port) {}

  /// Its standard output goes to `stdout_file`, if one is named.
  /// "ddrun --rdzv-endpoint=… common… own… -- worker verbs…"
  Run& start(const Words& own, const Words& verbs, const std::string& secret = job_secret,
             const std::map<std::string, std::string>& variables = {}, const std::string& stdout_file = {}) {
    Words options;
    if (port_) options.push_back("--rdzv-endpoint=127.0.0.1:" + std::to_string(*port_));
    options.insert(options.end(), common_.begin(), common_.end());
    options.insert(options.end(), own.begin(), own.end());
    RunOptions run;
    run.env = {{"DDRUN_SECRET", secret}, {"XDG_CONFIG_HOME", "/proc/no-such-folder"}};
    run.env.insert(run.env.end(), variables.begin(), variables.end());
    if (!stdout_file.empty()) {
      run.in_child = [stdout_file] {
        ::dup2(::open(stdout_file.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600), STDOUT_FILENO);
      };
    }
    runs_.push_back(std::make_unique<Run>(job(options, verbs), run));
    return *runs_.back();
  }

  [[nodiscard]] int port() const { return port_.value(); }
  Run& operator[](std::size_t agent) { return *runs_.at(agent); }

  /// Waits for all of them; fails the test if something is left.
  std::vector<Outcome> finish() {
    std::vector<Outcome> outcomes;
    for (const auto& run : runs_) outcomes.push_back(run->wait());
    for (const auto& run : runs_) REQUIRE(run->all_gone());
    return outcomes;
  }

  /// The process that does the work of `run`: below its guard and its sweeper.
  static pid_t agent_of(const Run& run) {
    const auto below = descendants_of(run.pid());
    return below.size() < 2 ? -1 : below[1];
  }

  /// None of its processes, a lease's program neither, does anything once the first has gone.
  static void kill_all_of(Run& run) {
    const auto all = run.living();
    for (const int number : {SIGSTOP, SIGKILL}) {
      for (const pid_t pid : all) (void)run.signal(pid, number);
    }
  }

 private:
  Words common_;
  std::optional<int> port_;
  std::vector<std::unique_ptr<Run>> runs_;
};

/// Two agents with a worker each that run until they are stopped; the first one runs the coordinator.
inline void start_two(Agents& agents, const Words& verbs = {"print", "up", "pause"}) {
  Run& first = agents.start({"--node-rank=0"}, verbs);
  Run& second = agents.start({"--node-rank=1"}, verbs);
  REQUIRE(first.wait_for_out("up"));
  REQUIRE(second.wait_for_out("up"));
}

/// Verbs of a worker that tells of its round and runs until there is this file.
inline Words until(const std::string& file) {
  return {"env", "DDRUN_ROUND", "env", "TORCHELASTIC_RESTART_COUNT", "env", "WORLD_SIZE", "print", "up", "await", file};
}

/// All that was written, for a failed check.
inline std::string shown(const std::vector<Outcome>& outcomes) {
  std::string text;
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    text += "agent " + std::to_string(i) + ", code " + std::to_string(outcomes[i].code()) + "\nstdout:\n" +
            outcomes[i].out + "\nstderr:\n" + outcomes[i].err + "\n";
  }
  return text;
}

}  // namespace ddrun::test
