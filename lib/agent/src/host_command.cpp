#include "host_command.hpp"

#include <fcntl.h>
#include <signal.h>

#include <utility>

#include "ddrun/base/messages.hpp"
#include "ddrun/base/shutdown_timeouts.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/process/process_tree.hpp"
#include "takedown.hpp"

namespace ddrun::agent {

namespace {

void signal_all(int number) {
  for (const auto& info : process::workers_and_their_descendants()) {
    if (info.state != 'Z') process::signal_descendant(info, number);
  }
}

}  // namespace

Result<void> HostCommand::start(std::string label, std::string command, const char* directory,
                                std::vector<std::string> environment, OnEnd on_end) {
  auto streams = output_.open_extra_streams(std::move(label));
  if (!streams) return tl::unexpected(streams.error());
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  std::string shell = "sh";
  std::string option = "-c";
  char* const argv[] = {shell.data(), option.data(), command.data(), nullptr};
  std::vector<char*> entries;
  for (std::string& entry : environment) entries.push_back(entry.data());
  entries.push_back(nullptr);
  process::SpawnPlan plan;
  plan.program = "/bin/sh";
  plan.argv = argv;
  plan.environment = entries.data();
  plan.directory = directory;
  plan.standard_in = null.get();
  plan.standard_out = streams->out.get();
  plan.standard_err = streams->err.get();
  started_at_ = Clock::now();
  auto spawned = launcher_.spawn(plan);
  if (!spawned) return tl::unexpected(spawned.error());
  child_ = std::move(*spawned);
  on_end_ = std::move(on_end);
  stopping_ = exited_ = false;
  kill_deadline_.reset();
  watcher_.watch(child_->pid, child_->pidfd.get());
  return {};
}

void HostCommand::on_child_exit(const process::ChildEnd& end) {
  if (!child_ || child_->pid != end.pid) return;
  child_.reset();
  end_.status = end.status;
  check_gone();
}

void HostCommand::check_gone() {
  if (!is_running() || child_ || exited_) return;
  if (process::has_workers()) stop(SIGTERM);
  else finish();
}

void HostCommand::stop(int signal) {
  if (!is_running() || exited_ || (signal == SIGTERM && std::exchange(stopping_, true))) return;
  if (grace_.count() == 0) signal = SIGKILL;
  if (signal == SIGKILL && !kill_deadline_) kill_deadline_ = Clock::now() + shutdown::kill_timeout;
  if (kill_deadline_ && Clock::now() >= *kill_deadline_) {
    say(Level::warning, "a process of the command cannot be killed: it hangs in the kernel or is another user's");
    return finish();
  }
  timer_.set_paused(false);
  signal_all(signal);
  signal_all(SIGCONT);
  timer_.set(Clock::now() + (signal == SIGKILL ? resweep_interval : grace_), [this] { stop(SIGKILL); });
}

void HostCommand::set_paused(bool still) {
  if (!is_running() || kill_deadline_) return;
  timer_.set_paused(still);
  signal_all(still ? SIGSTOP : SIGCONT);
}

void HostCommand::finish() {
  exited_ = true;
  timer_.cancel();
  if (child_) end_.status = Signaled{SIGKILL, false};
  end_.ran = Clock::now() - started_at_;
  output_.async_end_attempt([this] { std::exchange(on_end_, nullptr)(end_); });
}

}  // namespace ddrun::agent
