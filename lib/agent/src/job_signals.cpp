#include "job_signals.hpp"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "ddrun/base/messages.hpp"
#include "ddrun/base/shared_output.hpp"
#include "ddrun/base/shutdown_timeouts.hpp"
#include "ddrun/base/standard_input.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/process/process_tree.hpp"

namespace ddrun::agent {

namespace {

std::string describe_sender(pid_t sender) {
  if (sender <= 0) return {};
  if (sender == ::getpid()) return "--end-with-parent: the process that started ddrun has ended";
  const std::string name = process::process_name(sender);
  return name.empty() ? concat("pid ", sender) : concat("pid ", sender, " (", name, ")");
}

}  // namespace

dev_t input_terminal(const LaunchSpec& spec) {
  struct stat input {};
  const bool reads = spec.stdin_.kind == StdinSpec::Kind::rank && ::isatty(STDIN_FILENO) != 0;
  return reads && ::fstat(STDIN_FILENO, &input) == 0 ? input.st_rdev : 0;
}

JobSignals::JobSignals(const Parts& parts, std::function<void(const Event&)> dispatch)
    : parts_(parts),
      dispatch_(std::move(dispatch)),
      receiver_(parts.job.io.get_executor(), parts.job.context,
                {[this](const process::SignalMessage& message) { on_signal(message); },
                 [this](pid_t first) { parts_.watcher.reap(first); },
                 [this](const char* process, pid_t pid) { on_parent_lost(process, pid); }}),
      background_poll_(parts.job.io.get_executor()),
      terminal_(input_terminal(parts.job.spec)) {}

Result<void> JobSignals::open() {
  const StopPolicy& stop = parts_.job.spec.stop;
  return receiver_.open(stop.ending_signals, stop.grace);
}

void JobSignals::bound_console_wait() {
  set_ending();
  parts_.output.set_flush_timeout(shutdown::console_stall_limit);
}

void JobSignals::on_signal(const process::SignalMessage& message) {
  const int signal = message.signal;
  if (signal == SIGSTOP || (signal == SIGCONT && suspended_)) return set_suspended(signal == SIGSTOP);
  if (signal == SIGCONT) {
    parts_.output.set_suspended(process::job_is_in_background());
    stop_background_readers();
  }
  if (parts_.job.spec.stop.ending_signals.count(signal) == 0) pass_on(message);
  else end_job(message);
}

void JobSignals::pass_on(const process::SignalMessage& message) {
  const int signal = message.signal;
  std::set<pid_t> signaled;  // by the kernel: in the foreground of the pseudo-terminal
  if (signal == SIGWINCH) {
    parts_.output.screen_resized();
    const bool any = message.sender == 0 && parts_.group.input().feeds_terminal();
    for (const Worker& worker : parts_.group.workers()) {
      if (any && parts_.group.reads_stdin(worker)) signaled.insert(worker.end.pid);
    }
  }
  const bool to_all = parts_.job.spec.rendezvous.signals_to_all && (signal == SIGUSR1 || signal == SIGUSR2);
  say(Level::info,
      concat("passing ", signal_name(signal), to_all ? " to the workers of all machines" : " to the workers"));
  if (to_all) parts_.job.rendezvous->send(rendezvous::PassSignal{parts_.job.ranks.round, signal});
  else parts_.group.signal({signal}, signaled);
}

void JobSignals::end_job(const process::SignalMessage& message) {
  const int signal = message.signal;
  const GroupState state = parts_.machine.state();
  const std::string from = describe_sender(message.sender);
  const std::string what = signal_name(signal) + (from.empty() ? "" : " from " + from);
  const bool repeated = parts_.machine.ending_signal() != 0;
  if (repeated && !message.at_once) return say(Level::info, concat(what, ": the job is being ended already"));
  if (suspended_) set_suspended(false);
  bound_console_wait();
  if (state == GroupState::finished &&
      parts_.commands.stop_after(what, exit_codes::signal_base + signal, message.at_once)) {
    return;
  }
  const std::string then =
      concat(" (SIGKILL after ", format_duration(parts_.job.spec.stop.grace), ", or at once if you repeat it)");
  const int workers = parts_.group.alive_count();
  if (state == GroupState::preparing && parts_.commands.is_running()) {
    say(Level::notice, concat(what, ": stopping --before", then));
  } else if (state < GroupState::closing && repeated) {
    say(Level::notice, concat(what, " again: killing all workers"));
  } else if (state < GroupState::closing && workers > 0) {
    say(Level::notice, concat(what, ": stopping ", counted(workers, "worker"), then));
  } else if (state == GroupState::stopping && (signal == SIGINT || signal == SIGQUIT)) {
    say(Level::notice, concat(what, ": killing what the workers have left"));
  }
  dispatch_(event::EndingSignal{signal, from, message.at_once});
  if (state >= GroupState::closing) on_late_signal(what, message.at_once);
}

/// No process is left, only output that the console has not taken.
void JobSignals::on_late_signal(const std::string& what, bool at_once) {
  if (parts_.machine.state() == GroupState::finished && parts_.output.is_flushed()) return parts_.job.io.stop();
  if (at_once) return parts_.output.abort_flush();
  say(Level::notice, concat(what, ": ending as soon as the output is not read for ",
                            format_duration(shutdown::console_stall_limit), ", or at once if you repeat it"));
}

void JobSignals::on_parent_lost(const char* process, pid_t pid) {
  parts_.group.input().stop();
  if (suspended_) set_suspended(false);
  bound_console_wait();
  for (Participant* one : parts_.participants) one->stop(SIGTERM);
  dispatch_(event::ParentLost{concat("ddrun's own ", process, " (pid ", pid, ") was killed; the job was stopped")});
}

void JobSignals::set_suspended(bool still) {
  suspended_ = still;
  // A read that Ctrl-Z interrupted must not continue in the background.
  if (!still) stop_background_readers();
  parts_.group.input().set_paused(still);
  parts_.output.set_suspended(still || process::job_is_in_background());
  parts_.group.signal({still ? SIGSTOP : SIGCONT}, stopped_readers_);
  for (Participant* one : parts_.participants) one->set_paused(still);
  parts_.job.rendezvous->set_paused(still);
  parts_.job.context.shared->set_suspended(still);
}

void JobSignals::signal_stopped_readers(int number) const {
  for (const auto& info : process::workers_and_their_descendants()) {
    if (stopped_readers_.count(info.group) != 0) process::signal_descendant(info, number);
  }
}

void JobSignals::stop_background_readers() {
  if (terminal_ == 0 || suspended_) return;
  // The shell may have changed the terminal's settings.
  if (parts_.group.input().feeds_terminal()) return parts_.group.input().set_paused(false);
  if (!process::job_is_in_background()) {
    signal_stopped_readers(SIGCONT);
    stopped_readers_.clear();
    return;
  }
  const bool had_stopped = !stopped_readers_.empty();
  bool runs = false;
  if (!parts_.machine.taking_down()) {
    for (const auto& reader : process::readers_of_terminal(terminal_)) {
      stopped_readers_.insert(reader.group);
      runs = runs || reader.state != 'T';
    }
  }
  if (runs) signal_stopped_readers(SIGSTOP);
  if (!stopped_readers_.empty() && !had_stopped) {
    say(Level::notice, concat(RankName{parts_.job.prepared.role_of(0), parts_.job.spec.stdin_.rank}.text(),
                              " is stopped: it reads from the terminal, which another job of the shell has; in the ",
                              "foreground ('fg') it goes on"));
  }
  background_poll_.set(Clock::now() + StandardInput::background_interval, [this] { stop_background_readers(); });
}

}  // namespace ddrun::agent
