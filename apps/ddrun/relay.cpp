#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "ddrun/base/build_info.hpp"
#include "ddrun/base/environment.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/remote/bootstrap.hpp"
#include "hosts.hpp"

using namespace ddrun;

namespace {

Result<void> go_to(const remote::Bootstrap& part) {
  if (::chdir(part.directory.c_str()) == 0 || !part.directory_needed) return {};
  return fail_errno(
      Errc::unavailable,
      concat("cannot go to ", shell_quote(part.directory), ", where you are on your own machine (see --chdir)"), errno);
}

/// What the user's ddrun has decided, as this one would have understood it from a command line.
Result<cli::Launch> launch_of(const remote::Bootstrap& part, const remote::Home& home,
                              const cli::VersionInfo& version) {
  auto parsed = cli::parse_launch(part.words, {Environment(), version});
  auto* launch = std::get_if<cli::Launch>(&parsed);
  if (launch == nullptr) {
    const auto* text = std::get_if<cli::PrintAndExit>(&parsed);
    return fail(Errc::protocol, concat("cannot read its part of the job: ", text != nullptr ? text->text : ""));
  }
  LaunchSpec& spec = launch->spec;
  const bool count_given = std::any_of(part.words.begin(), part.words.end(),
                                       [](const std::string& word) { return word.starts_with("--nproc-per-node="); });
  if (!count_given && part.slots) spec.nproc = {NprocSpec::Kind::count, *part.slots};
  if (!part.reads_input) spec.stdin_.kind = StdinSpec::Kind::none;
  RendezvousSpec& rendezvous = spec.rendezvous;
  rendezvous.id = part.job_id;
  rendezvous.min_nodes = part.min_nodes;
  rendezvous.max_nodes = part.max_nodes;
  rendezvous.is_host = part.node_rank == 0;
  rendezvous.coordinators = part.coordinators;
  // Where all have a place, it is the one in which they were named.
  if (part.min_nodes == part.node_count) rendezvous.node_rank = part.node_rank;
  if (part.node_count > 1 && spec.log.label == Label::automatic && spec.log.line_prefix_template.empty()) {
    spec.log.label = Label::host;
  }
  // The files are the whole job's, and what is in them is the coordinator's, at home; the others only have to know that
  // they are wanted.
  if (spec.report_file) spec.report_file = part.node_rank == 0 ? home.report_path() : "/dev/null";
  if (part.node_rank != 0) spec.events_file.reset();
  else if (spec.events_file) spec.events_file = home.events_path();
  launch->messages.color = part.color;
  // What happens to all of them is said once.
  if (part.node_rank != 0 && launch->messages.shown == Level::notice) launch->messages.shown = Level::warning;
  return std::move(*launch);
}

int run_part(const remote::Bootstrap& part, const remote::Home& home, const cli::VersionInfo& version,
             const RunLaunch& run, process::AgentContext& context) {
  auto launch = launch_of(part, home, version);
  if (!launch) {
    say_error(launch.error().message);
    return exit_codes::launcher_failed;
  }
  set_message_settings(launch->messages);
  if (auto there = go_to(part); !there) {
    say_error(there.error().message);
    return exit_codes::launcher_failed;
  }
  return run(*launch, context, part, home);
}

}  // namespace

bool is_relay_word(std::string_view word) { return word == "relay" || word == "agent"; }

int serve_host(int argc, char** argv, const cli::VersionInfo& version, const RunLaunch& run) {
  const BuildInfo& build = build_info();
  remote::RelayOptions options;
  options.build_id = remote::build_id(build.version, build.commit);
  options.portable = std::string_view(build.link) == "static";
  bool foreign_word = false;
  for (int i = 2; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word.starts_with("--check=")) return word.substr(8) == options.build_id ? 0 : 1;
    if (word == "--private") options.private_copy = true;
    else foreign_word = true;
  }
  // Between machines it is a pipe or a socket, on this one too.
  struct stat input {};
  if (foreign_word || ::fstat(STDIN_FILENO, &input) != 0 || (!S_ISFIFO(input.st_mode) && !S_ISSOCK(input.st_mode))) {
    say_error(concat("'ddrun ", argv[1],
                     "' is what --hosts starts on other machines; for a program of that name write: ddrun -- ",
                     argv[1]));
    return exit_codes::usage;
  }
  return remote::run_relay(options, [&](const remote::Bootstrap& part, const remote::Home& home) {
    for (const auto& [name, value] : part.variables) ::setenv(name.c_str(), value.c_str(), 1);
    const auto agent = [&](process::AgentContext& context) { return run_part(part, home, version, run, context); };
    return process::run_guarded(argc, argv, agent).code;
  });
}
