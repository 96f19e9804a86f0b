#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ddrun/base/result.hpp"
#include "ddrun/cluster/complete.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::cluster {

/// A signal that the user's process, the guard, was sent.
struct ForwardedSignal {
  int signal = 0;
  pid_t sender = 0;      ///< 0 if it is not known
  bool at_once = false;  ///< the user repeats it
};

/// The ddrun that starts agents, as far as a starter deals with it.
struct AgentStart {
  std::vector<std::string> arguments;  ///< ddrun's own, as typed, which are the agents' too
  StdinSpec stdin_;
  bool stdin_usable = true;
  std::set<int> ending_signals;
  /// To be called when they are started: signals are handed on from then on. `margin` comes on top of the grace time.
  std::function<void(std::chrono::milliseconds margin)> on_started;
  int guard_messages = -1;  ///< readable when hear() has something to say
  /// Nothing where it was no whole message; `gone`: the guard is.
  std::function<std::optional<ForwardedSignal>(bool& gone)> read_guard_message;
  int sweeper_liveness = -1;  ///< readable when the sweeper is gone: the agents are to end
  /// An agent takes a signal for a repetition if so much time lies before it.
  std::chrono::milliseconds repeat_interval{};
};

/// Starts ddrun on each machine of a job of which this process is the script, on one of them, by the scheduler's own
/// means.
class AgentStarter {
 public:
  AgentStarter() = default;
  virtual ~AgentStarter() = default;
  AgentStarter(const AgentStarter&) = delete;
  AgentStarter& operator=(const AgentStarter&) = delete;

  /// Makes this process's environment the one that the agents get. Fails if this process is one of them.
  [[nodiscard]] virtual Result<void> prepare() = 0;
  /// Starts them, waits for their end and passes signals on. The exit code is theirs.
  [[nodiscard]] virtual int run(const SlurmScript& script, const AgentStart& start) = 0;
  /// For the guard, when the process that was in run() was killed: ends agents that are still there.
  virtual void stop_orphaned_agents() = 0;
};

/// To be made before guard and agent part: what both must know of the agents stands in memory that they share.
[[nodiscard]] std::unique_ptr<AgentStarter> make_agent_starter();

}  // namespace ddrun::cluster
