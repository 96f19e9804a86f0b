#pragma once

#include <signal.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <set>
#include <string_view>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun::process {

// ddrun is three processes, each the parent of the next, so that one SIGKILL, or two, leave nothing behind:
//
//   guard    the process that the user started. Passes signals on and the exit code back. (If that one has children
//            already, as after `exec ddrun` in a script with background processes, the guard is a child of it: they
//            and what they leave are not ours.)
//   sweeper  does nothing until guard or agent is gone; then it ends what is left. Its own session and name, so that
//            neither a signal to the user's process group nor `pkill ddrun` meets it together with the other two.
//   agent    does all the work, and is the parent of the workers.
//
// Each is a child subreaper: what loses its parent becomes a child of the nearest of the three that lives, whatever it
// did to hide (double fork, setsid, an emptied environment), and can then be found and killed. That is why the sweeper
// stands in the line of descent instead of looking for marked processes in /proc. Life and death are told by pipes:
// the end of a process closes its ends, on any kernel and without a race.

/// What the guard writes to the agent: a signal that it received.
struct SignalMessage {
  int signal = 0;        ///< SIGSTOP: the guard was told to stop (Ctrl-Z), and does when the agent is `suspended`
  pid_t sender = 0;      ///< 0: the kernel, as for Ctrl-C
  bool at_once = false;  ///< it ends the job and is meant as a repetition: see RepeatedSignal
};

/// What a parent of the guard that knows ddrun gives to sigqueue() with a signal: the sender that it heard it from, or
/// this if the signal is meant as a repetition.
constexpr int at_once_mark = -1;

[[nodiscard]] constexpr std::uint64_t signal_bit(int signal) { return std::uint64_t{1} << (signal - 1); }

/// What the three share (one anonymous page).
struct SharedState {
  std::atomic<pid_t> started_pid{0};  ///< what the user knows as ddrun: the guard, as a rule
  std::atomic<pid_t> guard_pid{0};
  std::atomic<pid_t> sweeper_pid{0};
  std::atomic<pid_t> agent_pid{0};
  /// How long the agent may take for an orderly stop; the sweeper waits a little longer before it kills the agent.
  std::atomic<long> grace_ms{30'000};
  /// Signals that end the job, each as the bit of its number.
  std::atomic<std::uint64_t> ending_signals{signal_bit(SIGTERM) | signal_bit(SIGINT) | signal_bit(SIGHUP) |
                                            signal_bit(SIGQUIT)};
  /// True while the agent takes signals as events. Before (options, --help, checks of the machine) and after (the last
  /// report, on a console that may be stuck) it has nothing to stop in order: the first ending signal ends it.
  std::atomic<bool> agent_handles_signals{false};
  std::atomic<bool> agent_ever_handled_signals{false};
  /// All that the agent has to stop stands still. It sends the guard SIGCHLD then, so that this one looks.
  std::atomic<bool> suspended{false};
  /// The guard knows how the terminal was, as no worker had changed it.
  std::atomic<bool> has_terminal{false};
  /// Workers that did not end well are gone: the guard is to set it as it was.
  std::atomic<bool> terminal_left_changed{false};
  /// The agent has nothing left to do but end, and no child: no process needs to wait for it before ending too.
  std::atomic<bool> agent_done{false};
  /// Its exit code, once it is done.
  std::atomic<int> agent_code{exit_codes::launcher_failed};
  /// Set by the sweeper when the agent was killed: the signal.
  std::atomic<int> agent_killed_by{0};
  /// Processes that survived SIGKILL in the final sweep (stuck in the kernel); -1: there were some, and could not be
  /// found, as /proc cannot be read.
  std::atomic<int> unkillable{0};
  /// The job's own cgroup if there is one, else empty. The agent may look once `cgroup_decided` is not 0 (a futex).
  char cgroup[512] = {};
  std::atomic<int> cgroup_decided{0};
  /// A program that the agent talks to: it is to hear that the agent is gone, and to end by itself, before it is
  /// killed; 0: none.
  std::atomic<pid_t> helper_pid{0};
  /// A directory that the agent made for this job alone; removed behind a killed agent if it is empty, else
  /// named.
  char private_directory[512] = {};

  /// For the agent, once it takes signals as events: which end the job, and how long an orderly end may take.
  void begin_signal_handling(const std::set<int>& signals, Milliseconds grace);
  /// For the agent: what SIGSTOP or SIGCONT has asked for is done.
  void set_suspended(bool now_suspended);
  /// For the agent: an attempt is over, and not all of it ended by itself and well. Where ddrun has a terminal the
  /// guard restores its settings.
  void request_terminal_restore();
  /// For the agent, before it makes the private directory. Fails with `invalid_argument` if the path does not fit.
  [[nodiscard]] Result<void> set_private_directory(std::string_view path);

 private:
  /// The guard looks at this page at each SIGCHLD.
  void wake_guard() const;
};

/// The agent's view of the other two.
struct AgentContext {
  UniqueFd guard_messages;    ///< non-blocking; SignalMessage records; end-of-file: the guard is dead
  UniqueFd sweeper_liveness;  ///< end-of-file: the sweeper is dead
  /// False if stdin is a terminal that belongs to another job of the shell: a worker must not read from it.
  bool stdin_usable = true;
  SharedState* shared = nullptr;
};

/// How the whole program is to end.
struct ProgramEnd {
  int code = 0;       ///< the agent's, or 125 with a message if the agent was killed
  int by_signal = 0;  ///< not 0: the guard heard this signal, and `code` is 128 and its number
};

/// Splits into guard, sweeper and agent and runs `agent_main` in the agent, in a session of its own. Returns in the
/// guard only. (Where the guard is a child of the process that was started, that one ends here as the guard does.)
/// Must be called before any thread is started and before much memory is touched: the guard stays as small as it is
/// now. `argv` is main's own: the sweeper writes its name over its copy.
ProgramEnd run_guarded(int argc, char** argv, const std::function<int(AgentContext&)>& agent_main);

/// For any of the three: true while another job of the shell has the terminal, from which this one must not read. What
/// is in the agent's session or below the kernel does not stop.
[[nodiscard]] bool job_is_in_background();

/// Ends this process, by the signal if there is one: only so do a shell's loop, make and a script know that the user
/// wants all of it to end. Leaves no core file. Process 1 of a container cannot die so, and exits with the code.
[[noreturn]] void end_program(const ProgramEnd& end);

}  // namespace ddrun::process
