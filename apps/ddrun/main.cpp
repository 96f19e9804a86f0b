// ddrun: parses the command line, runs the job, returns an exit code.

#include <unistd.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "commands.hpp"
#include "ddrun/agent/agent.hpp"
#include "ddrun/agent/ci.hpp"
#include "ddrun/agent/job_result.hpp"
#include "ddrun/base/build_info.hpp"
#include "ddrun/base/environment.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/io_context.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/shared_output.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/process/guard.hpp"
#include "ddrun/remote/bootstrap.hpp"
#include "ddrun/remote/relay.hpp"
#include "ddrun/rendezvous/secret.hpp"

namespace {

using namespace ddrun;

cli::VersionInfo version_info() {
  const BuildInfo& build = build_info();
  cli::VersionInfo version{build.version, build.commit, {}};
  version.features = {{"compiler", build.compiler},
                      {"build", build.build_type},
                      {"linked", build.link},
                      {"libraries", build.libraries},
                      {"NCCL", "not part of ddrun; ddrun-allreduce looks for it when it runs"}};
  if (*build.sanitize != '\0') version.features.emplace_back("sanitizers", build.sanitize);
  return version;
}

/// Fails with launcher_failed on a full disk or closed pipe.
int print(const std::string& text, bool to_stderr, int code) {
  if (write_shared(to_stderr ? STDERR_FILENO : STDOUT_FILENO, text)) return code;
  return code == 0 ? exit_codes::launcher_failed : code;
}

int dry_run(const LaunchSpec& spec) {
  const auto text = agent::describe_job(spec, environ, build_info().version);
  if (text) return print(*text, false, exit_codes::success);
  return say_failure(text.error());
}

/// Names an option that went to the program instead, if the program soon ended for that reason. Where ddrun does not
/// see stderr, only Python's status for wrong usage tells.
void hint_misplaced_option(const cli::Launch& launch, const agent::JobResult& result) {
  constexpr std::chrono::seconds soon{10};
  const bool failed = result.verdict == agent::Verdict::worker_failed && !result.attempts.empty();
  if (!failed || !result.attempts.back().first_failure || launch.has_separator) return;
  const agent::WorkerEnd& worker = result.attempts.back().workers[*result.attempts.back().first_failure];
  std::size_t index = 0;
  for (int slot = worker.slot; slot >= result.programs[index].workers; ++index) slot -= result.programs[index].workers;
  const ProgramSpec& program = launch.spec.programs[index];
  const bool is_usage = worker.status == ExitStatus(Exited{exit_codes::usage});
  const bool is_silent = worker.stderr_tail.empty();
  if (worker.ran > soon || (is_silent && (!is_usage || program.kind == ProgramKind::executable))) return;
  const std::string hint = cli::misplaced_option(program, worker.stderr_tail);
  if (!hint.empty() && std::ranges::find(launch.warnings, hint) == launch.warnings.end()) say(Level::warning, hint);
}

/// `part`: set on a host of --hosts; only the coordinator's prints the failure report.
int run(const cli::Launch& launch, process::AgentContext& context, agent::JobHooks hooks = {},
        const remote::Bootstrap* part = nullptr) {
  LaunchSpec spec = launch.spec;
  if (!context.stdin_usable && spec.stdin_.kind != StdinSpec::Kind::none) {
    say(Level::info, "stdin is a terminal that another job of the shell uses: workers read end-of-file");
    spec.stdin_.kind = StdinSpec::Kind::none;
  }
  const agent::CiService ci = agent::detect_ci(launch.ci, Environment(environ));
  hooks.fold = agent::ci_fold(ci, spec.first().name);
  hooks.reports = {ci, launch.messages.color, part != nullptr, part == nullptr || part->runs_coordinator,
                   spec.report_files};
  const agent::JobResult result = agent::run_job(spec, context, environ, build_info().version, std::move(hooks));
  hint_misplaced_option(launch, result);
  return result.code;
}

/// On a host of --hosts.
int run_part_of_job(const cli::Launch& launch, process::AgentContext& context, const remote::Bootstrap& part,
                    const remote::HeadConnection& head) {
  agent::JobHooks hooks;
  std::string text = head.read_secret();
  auto secret = rendezvous::Secret::from_text(text);
  rendezvous::wipe(text);
  if (!secret) return say_failure(secret.error(), exit_codes::launcher_failed);
  hooks.secret = std::move(*secret);
  hooks.on_listening = [&head](std::uint16_t port) { head.report_coordinator_port(port); };
  hooks.on_round = [&head] { head.report_round(); };
  return run(launch, context, std::move(hooks), &part);
}

Parsed parse_arguments(const std::vector<std::string>& arguments) {
  return parse(arguments, Environment(environ), version_info(), ::isatty(STDERR_FILENO) != 0);
}

/// Whether the words ask for nothing but a text.
bool ask_for_text(const std::vector<std::string>& words) {
  constexpr std::array<std::string_view, 4> actions{"--help", "-h", "--version", "-V"};
  return !words.empty() && std::find(actions.begin(), actions.end(), words[0]) != actions.end();
}

/// Runs a subcommand that starts no process, or prints a text, without a guard. `command` may be null in the latter
/// case.
int command_main(const Command* command, const std::vector<std::string>& arguments) {
  const auto parsed = parse_arguments(arguments);
  if (const auto* text = std::get_if<cli::PrintAndExit>(&parsed)) return print(text->text, text->to_stderr, text->code);
  return command->run(parsed);
}

int agent_main(std::string_view started_as, const std::vector<std::string>& arguments, process::AgentContext& context,
               std::span<const AgentStarter> starters) {
  const auto parsed = parse_arguments(arguments);
  if (const auto* text = std::get_if<cli::PrintAndExit>(&parsed)) return print(text->text, text->to_stderr, text->code);
  auto launch = std::get<cli::Launch>(parsed);
  launch.spec.started_as = variable("DDRUN_STARTED_BY_SRUN").value_or(started_as);
  set_message_settings(launch.messages);
  for (const auto& warning : launch.warnings) say(Level::warning, warning);
  if (launch.spec.end_with_parent && !launch.spec.dry_run) {
    const int signal = preferred_ending_signal(launch.spec.stop.ending_signals);
    if (auto begun = process::end_with_parent(*context.shared, signal); !begun) {
      return say_failure(begun.error(), exit_codes::usage);
    }
  }
  const Result<DetectedCluster> found =
      launch.spec.remote.asked_for() ? DetectedCluster{} : detect_cluster(launch, context.shared->started_pid);
  if (!found) return say_failure(found.error(), exit_codes::usage);
  const StartRequest request{launch, arguments, found->completion.start_agents};
  for (const AgentStarter& starter : starters) {
    if (const auto code = starter.run(request, context)) return *code;
  }
  const auto& gpus = found->detected.gpus;
  if (gpus) note_unused_gpus(launch, gpus->value);
  else note_unused_gpus(launch);
  return launch.spec.dry_run ? dry_run(launch.spec) : run(launch, context);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && is_relay_command(argv[1])) {
    const auto serve = [&] { return serve_host(argc, argv, version_info(), run_part_of_job); };
    ::_exit(run_main(exit_codes::launcher_failed, serve));
  }
  // Only the agent needs all arguments: the guard stays small.
  const auto arguments = [&](int max_count) {
    return std::vector<std::string>(argv + std::min(argc, 1), argv + std::min(argc, max_count));
  };
  const std::vector<std::string> first_words = arguments(3);
  if (const Command* const command = find_command(first_words); command != nullptr || ask_for_text(first_words)) {
    ::_exit(run_main(exit_codes::launcher_failed, [&] { return command_main(command, arguments(argc)); }));
  }
  const std::string started_as = argc > 0 ? argv[0] : "";
  const auto starters = make_agent_starters();
  const process::ProgramEnd end = process::run_guarded(argc, argv, [&](process::AgentContext& context) {
    return agent_main(started_as, arguments(argc), context, starters);
  });
  for (const AgentStarter& starter : starters) starter.stop_orphans();
  process::end_program(end);
}
