#pragma once

#include <signal.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/process/overdue_workers.hpp"

namespace ddrun::process {

// ddrun is three processes, each the parent of the next, so that one SIGKILL, or two, leave no process behind:
//
//   guard    the process that the user started. Forwards signals and returns the exit code. (If it has children
//            already, as after `exec ddrun` in a script with background processes, the guard is forked from it, and
//            they do not descend from the guard.)
//   sweeper  sleeps until the guard or the agent is dead, then kills all remaining descendants. It has another session
//            and name, so that a signal to the user's process group or `pkill ddrun` does not reach it.
//   agent    does all the work, and is the parent of the workers.
//
// Each is a child subreaper: an orphan becomes a child of the nearest of the three that lives, even after a double
// fork, setsid or with an empty environment, and can then be found and killed. Each detects another's death by the
// end-of-file of a pipe, which needs no pidfd and has no race.

/// The record that the guard writes to the agent for each signal that it receives.
struct SignalMessage {
  int signal = 0;        ///< SIGSTOP: for SIGTSTP (Ctrl-Z); the guard stops when the agent is `suspended`
  pid_t sender = 0;      ///< 0: the kernel, as for Ctrl-C
  bool at_once = false;  ///< repeats a signal that ends the job: kill immediately (RepeatedSignal)
};

/// Value that a ddrun parent of the guard passes to sigqueue() instead of the sender's pid, for `at_once`.
constexpr int at_once_mark = -1;

[[nodiscard]] constexpr std::uint64_t signal_bit(int signal) { return std::uint64_t{1} << (signal - 1); }

/// Shared memory of the three processes (one anonymous page).
struct SharedState {
  std::atomic<pid_t> started_pid{0};  ///< the process that the user started: the guard, or its parent
  std::atomic<pid_t> parent_pid{0};   ///< the parent of that process; 0: in another PID namespace
  std::atomic<pid_t> guard_pid{0};
  std::atomic<pid_t> sweeper_pid{0};
  std::atomic<pid_t> agent_pid{0};
  /// How long the agent may take for an orderly stop; the sweeper waits a little longer before it kills the agent.
  std::atomic<long> grace_ms{30'000};
  /// Signals that end the job, each as the bit of its number.
  std::atomic<std::uint64_t> ending_signals{signal_bit(SIGTERM) | signal_bit(SIGINT) | signal_bit(SIGHUP) |
                                            signal_bit(SIGQUIT)};
  /// The agent handles signals as events. Before that (options, --help, checks of the machine) no worker runs, and the
  /// first ending signal kills the agent.
  std::atomic<bool> agent_handles_signals{false};
  /// An ending signal was received, or the guard is dead.
  std::atomic<bool> ending{false};
  /// Workers and timers of the agent are stopped.
  std::atomic<bool> suspended{false};
  /// The guard has saved the settings of its terminal.
  std::atomic<bool> has_terminal{false};
  /// The guard has to restore them.
  std::atomic<bool> terminal_left_changed{false};
  /// The agent has no child left and is about to exit: the others may exit at the same time.
  std::atomic<bool> agent_done{false};
  /// Its exit code, once it is done.
  std::atomic<int> agent_code{exit_codes::launcher_failed};
  /// The signal that killed the agent; 0: none.
  std::atomic<int> agent_killed_by{0};
  /// Processes that survived SIGKILL in the final sweep (state D); -1: unknown, as /proc cannot be read.
  std::atomic<int> unkillable{0};
  /// The path of the job's cgroup, empty if there is none. Valid once `cgroup_decided` is not 0 (a futex).
  char cgroup[512] = {};
  std::atomic<int> cgroup_decided{0};
  OverdueWorkers::Page overdue;
  /// How often a thread of the agent has killed the workers because the main thread was blocked.
  std::atomic<std::uint32_t> link_kills{0};
  /// Programs that are no workers (helper::mirror_running).
  std::atomic<pid_t> helpers[32]{};
  /// A helper program of the agent that is given time to exit after the agent's death, before it is killed; 0: none.
  std::atomic<pid_t> helper_pid{0};
  /// A directory that the agent made for this job. After the agent was killed it is removed if it is empty, else named
  /// in a message.
  char private_directory[512] = {};
  /// Names in /dev/shm that MPI programs of the round may leave; empty: none.
  char mpi_segments[2][64] = {};
  /// A directory in /dev/shm for files of MPI programs; empty: none.
  char mpi_directory[64] = {};

  /// Called by the agent once it handles signals as events. `signals`: those that end the job; `grace`: how long an
  /// orderly end may take.
  void begin_signal_handling(const std::set<int>& signals, Milliseconds grace);
  /// Called by the agent, while it waits for a reader: the job has to end, also because guard or sweeper is dead.
  [[nodiscard]] bool has_to_end() const;
  /// Called by the agent once it has carried out SIGSTOP or SIGCONT.
  void set_suspended(bool now_suspended);
  /// Called by the agent after an attempt with failed or killed workers: the guard restores the terminal's settings.
  void request_terminal_restore();
  /// Called by the agent before it makes the directory. Fails with `invalid_argument` if the path does not fit.
  [[nodiscard]] Result<void> set_private_directory(std::string_view path);
  /// Called by the agent before a round's workers are started: at most two names, without a slash.
  void set_mpi_segments(const std::vector<std::string>& names);
  /// Called by the agent when no worker of the round is left.
  void remove_mpi_segments();
  /// Called by the agent before it makes the directory, once: a name without a slash.
  void set_mpi_directory(std::string_view name);
  /// Called by whichever of agent, sweeper and guard ends last, when no worker is left: the segments, and the directory
  /// with all that is in it. Follows no link.
  void remove_mpi_files();
  /// Called by the agent when there is something new in `overdue` that the sweeper may not wait for yet.
  void wake_sweeper() const;
  /// Called by the agent. No effect if the guard is dead, whose pid may be another process's then.
  void signal_guard(int signal) const;

 private:
  /// Sends SIGCHLD, after which the guard reads this page.
  void wake_guard() const;
};

/// The agent's connections to the other two.
struct AgentContext {
  UniqueFd guard_messages;    ///< non-blocking; SignalMessage records; end-of-file: the guard is dead
  UniqueFd sweeper_liveness;  ///< end-of-file: the sweeper is dead
  /// False if stdin is a terminal that belongs to another job of the shell: a worker must not read from it.
  bool stdin_usable = true;
  SharedState* shared = nullptr;
};

/// --end-with-parent: sends `signal` to the guard when the process that started ddrun has ended, at once if it has
/// ended already. Called by the agent, once. Starts a thread that waits until then; without pidfds (before Linux 5.3)
/// it looks ten times a second. Unlike PR_SET_PDEATHSIG this does not depend on the thread by which ddrun was started.
/// Fails with `invalid_argument` if the parent is outside of this PID namespace, with `unavailable` without a thread.
[[nodiscard]] Result<void> end_with_parent(const SharedState& shared, int signal);

/// How the whole program ends.
struct ProgramEnd {
  int code = 0;       ///< the agent's, or 125 with a message if the agent was killed
  int by_signal = 0;  ///< not 0: the guard received this signal, and `code` is 128 plus its number
};

/// Splits into guard, sweeper and agent and runs `agent_main` in the agent, in a new session. Blocks until the job is
/// over and returns in the guard only. (Where the guard was forked from the process that was started, that process
/// exits here as the guard does.) Must be called before any thread is started, and early: the guard keeps the memory
/// that is touched before. `argv` is main's: the sweeper overwrites its copy with another name.
ProgramEnd run_guarded(int argc, char** argv, const std::function<int(AgentContext&)>& agent_main);

/// True while another job of the shell has the terminal: no process of this job must read from it then. The kernel does
/// not stop those in the agent's session. May be called by any of the three.
[[nodiscard]] bool job_is_in_background();

/// Ends this process, by the signal if there is one: a shell's loop, make and scripts stop only if their child dies of
/// the signal. Leaves no core file. Process 1 of a container does not die of signals and exits with the code.
[[noreturn]] void end_program(const ProgramEnd& end);

}  // namespace ddrun::process
