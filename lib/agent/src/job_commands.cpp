#include "job_commands.hpp"

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <set>

#include "atomic_file.hpp"
#include "ddrun/agent/report.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::agent {

JobCommands::JobCommands(Job& job, logs::Output& output, process::ChildWatcher& watcher, process::JobCgroup& cgroup)
    : job_(job),
      output_(output),
      cgroup_(cgroup),
      command_(job.io.get_executor(), job.launcher, watcher, output, job.spec.stop.grace) {}

Result<void> JobCommands::start(std::string_view name, const std::string& command, const Variables& variables,
                                HostCommand::OnEnd on_end) {
  std::set<std::string_view> left_out{"RANK", "LOCAL_RANK", "ROLE_RANK", "TORCHELASTIC_ERROR_FILE"};
  for (const auto& variable : variables) left_out.insert(variable.first);
  auto environment = job_.environment_without(left_out);
  if (!environment) return tl::unexpected(environment.error());
  for (const auto& [variable, value] : variables) environment->push_back(concat(variable, "=", value));
  cgroup_.renew();
  job_.launcher.set_child_cgroup(cgroup_.open_directory());
  say(Level::info, concat("running --", name));
  // As workers: a directory that was removed while ddrun is in it can still be inherited.
  const char* const directory = job_.spec.chdir ? job_.prepared.directory.c_str() : nullptr;
  auto started = command_.start(job_.label(name), command, directory, std::move(*environment), std::move(on_end));
  if (started && suspended_) command_.set_paused(true);
  return started;
}

void JobCommands::set_suspended(bool suspended) {
  suspended_ = suspended;
  command_.set_paused(suspended);
}

Result<void> JobCommands::start_before(std::function<void(const ExitStatus&)> on_end) {
  return start("before", job_.spec.commands.before, {}, [this, on_end = std::move(on_end)](CommandEnd end) {
    say(Level::info, concat("--before ", describe(end.status), " after ", format_duration(end.ran)));
    std::optional<CommandEnd>& before = job_.record.result().before;
    if (before) end.runs += before->runs;
    before = end;
    on_end(end.status);
  });
}

bool JobCommands::start_after(std::function<void()> on_end) {
  JobResult& result = job_.record.result();
  const std::string& command = job_.spec.commands.after;
  if (command.empty() || (result.attempts.empty() && !result.before)) return false;
  job_.record.update_totals(output_);
  // The user's file is written again at the end; a pipe or device, which can be written once, is left for that.
  const std::string spec_report = job_.spec.report_file.value_or("");
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

void JobCommands::stop_after(const std::string& why, int code) {
  if (after_stopped_by_.empty()) say(Level::notice, concat(why, ": stopping --after"));
  after_stopped_by_ = why;
  after_stopped_code_ = code;
  command_.stop(SIGTERM);
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
