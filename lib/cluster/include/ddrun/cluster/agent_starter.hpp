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

/// A signal that the guard, the user's process, has received.
struct ForwardedSignal {
  int signal = 0;
  pid_t sender = 0;      ///< 0 if unknown
  bool at_once = false;  ///< a repetition that forces SIGKILL
};

/// Inputs for starting the agents.
struct AgentStart {
  std::vector<std::string> arguments;  ///< ddrun's arguments as typed; passed to the agents
  StdinSpec stdin_;
  bool stdin_usable = true;
  std::set<int> ending_signals;
  /// Called once the agents are started; signals are forwarded from then on. `margin` is added to the grace time.
  std::function<void(std::chrono::milliseconds margin)> on_started;
  int guard_messages = -1;  ///< descriptor, readable when read_guard_message() has a message
  /// nullopt for an incomplete message; sets `gone` once the guard has ended.
  std::function<std::optional<ForwardedSignal>(bool& gone)> read_guard_message;
  int sweeper_liveness = -1;  ///< descriptor, readable once the sweeper has ended: stop the agents
  /// Minimum time after which an agent treats a second signal as a repetition.
  std::chrono::milliseconds repeat_interval{};
};

/// Starts one agent on each machine of a job from its batch script, by the scheduler's own command.
class AgentStarter {
 public:
  AgentStarter() = default;
  virtual ~AgentStarter() = default;
  AgentStarter(const AgentStarter&) = delete;
  AgentStarter& operator=(const AgentStarter&) = delete;

  /// Prepares this process's environment for the agents, which inherit it. Fails if this process is itself an agent.
  [[nodiscard]] virtual Result<void> prepare() = 0;
  /// Starts the agents, forwards signals and blocks until they have ended. Returns their exit code.
  [[nodiscard]] virtual int run(const SlurmScript& script, const AgentStart& start) = 0;
  /// For the guard, if the process in run() was killed: stops agents that still run.
  virtual void stop_orphaned_agents() = 0;
};

/// Must be called before guard and agent are forked: they share memory about the agents.
[[nodiscard]] std::unique_ptr<AgentStarter> make_agent_starter();

}  // namespace ddrun::cluster
