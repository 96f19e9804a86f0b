#include "job_commands.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <utility>

#include "atomic_file.hpp"
#include "ddrun/agent/report.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/shutdown_timeouts.hpp"
#include "ddrun/base/text.hpp"
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
  auto streams = TRY(output_.open_extra_streams(std::move(label)));
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
  plan.standard_out = streams.out.get();
  plan.standard_err = streams.err.get();
  started_at_ = Clock::now();
  child_ = TRY(launcher_.spawn(plan));
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

JobCommands::JobCommands(Job& job, logs::Output& output, process::ChildWatcher& watcher, process::JobCgroup& cgroup)
    : job_(job),
      output_(output),
      cgroup_(cgroup),
      command_(job.io.get_executor(), job.launcher, watcher, output, job.spec.stop.grace) {}

Result<void> JobCommands::start(std::string_view name, const std::string& command, const Variables& variables,
                                HostCommand::OnEnd on_end) {
  std::set<std::string_view> left_out{"RANK", "LOCAL_RANK", "ROLE_RANK", "TORCHELASTIC_ERROR_FILE"};
  for (const auto& variable : variables) left_out.insert(variable.first);
  const bool several = job_.spec.has_several_programs();
  if (several) {
    left_out.insert({"WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_WORLD_SIZE",
                     "MASTER_ADDR", "MASTER_PORT"});
  }
  auto environment = TRY(job_.environment_without(left_out, several ? ProgramSpec() : job_.spec.first(), job_.ranks));
  for (const auto& [variable, value] : variables) environment.push_back(concat(variable, "=", value));
  cgroup_.renew();
  job_.launcher.set_child_cgroup(cgroup_.open_directory());
  say(Level::info, concat("running --", name));
  what_ = concat("runs --", name, " (", cut_line(plain_line(command), 60));
  // As workers: a directory that was removed while ddrun is in it can still be inherited.
  const char* const directory = !several && job_.spec.first().chdir ? job_.prepared.first().directory.c_str() : nullptr;
  auto started = command_.start(job_.label(name), command, directory, std::move(environment), std::move(on_end));
  if (started && paused_) command_.set_paused(true);
  return started;
}

std::string JobCommands::describe_wait() const {
  return is_running() ? concat(what_, ", ", format_duration(Clock::now() - command_.started_at()), ")") : "";
}

void JobCommands::set_paused(bool still) {
  paused_ = still;
  command_.set_paused(still);
}

void JobCommands::begin(Done done) {
  const HostCommands& commands = job_.spec.commands;
  if (commands.before.empty() || (before_done_ && commands.before_each == BeforeEach::job)) return done({});
  auto begun = start("before", commands.before, {}, [this, done](CommandEnd end) {
    say(Level::info, concat("--before ", describe(end.status), " after ", format_duration(end.ran)));
    JobResult& result = job_.record.result();
    if (result.before) end.runs += result.before->runs;
    result.before = end;
    before_done_ = end.status == ExitStatus(Exited{0});
    if (before_done_) return done({});
    done(event::SpawnFailed{concat("--before failed on ", result.host, ": ", describe(end.status)),
                            shell_code(end.status)});
  });
  if (!begun) done(event::SpawnFailed{concat("--before: ", begun.error().message), exit_code(begun.error().code)});
}

bool JobCommands::start_after(std::function<void()> on_end) {
  JobResult& result = job_.record.result();
  const std::string& command = job_.spec.commands.after;
  if (command.empty() || (result.attempts.empty() && !result.before)) return false;
  job_.record.update_totals(output_);
  // The user's file is written again at the end; a pipe or device, which can be written once, is left for that.
  const std::string spec_report = job_.spec.report_files.empty() ? std::string() : job_.spec.report_files.front();
  std::string report = spec_report;
  std::string private_report;
  // Without a working directory a relative path names no file.
  std::error_code removed;
  if (!report.starts_with('/')) report.insert(0, std::filesystem::current_path(removed).string() + "/");
  if (removed || !is_replaceable_file(spec_report)) report = private_report = make_private_file("ddrun-report.");
  if (auto written = write_report(report, json_report(result)); !written) say(Level::warning, written.error().message);
  auto begun =
      start("after", command, {{"DDRUN_REPORT", report}, {"DDRUN_EXIT_CODE", std::to_string(exit_code(result))}},
            [this, private_report, on_end = std::move(on_end)](const CommandEnd& end) {
              if (!private_report.empty()) ::unlink(private_report.c_str());
              record_after(end);
              on_end();
            });
  if (begun) return true;
  say(Level::warning, concat("--after: ", begun.error().message));
  if (!private_report.empty()) ::unlink(private_report.c_str());
  return false;
}

bool JobCommands::stop_after(const std::string& why, int code, bool at_once) {
  if (!command_.is_running()) return false;
  if (after_stopped_by_.empty()) say(Level::notice, concat(why, ": stopping --after"));
  after_stopped_by_ = why;
  after_stopped_code_ = code;
  command_.stop(at_once ? SIGKILL : SIGTERM);
  return true;
}

void JobCommands::record_after(const CommandEnd& end) {
  say(Level::info, concat("--after ", describe(end.status), " after ", format_duration(end.ran)));
  JobResult& result = job_.record.result();
  result.after = end;
  if (end.status == ExitStatus(Exited{0})) return;
  const bool stopped = !after_stopped_by_.empty();
  const std::string what = concat("--after ", stopped ? "was stopped on " : "failed on ", result.host, ": ",
                                  stopped ? after_stopped_by_ : describe(end.status));
  if (exit_code(result) != 0) return say(Level::warning, what);
  result.verdict = Verdict::launcher_failed;
  result.cause.reset();
  result.message = what;
  result.launcher_code = stopped ? after_stopped_code_ : shell_code(end.status);
}

}  // namespace ddrun::agent
