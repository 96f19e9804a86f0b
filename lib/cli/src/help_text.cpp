#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "ddrun/argv/argv.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/cli/parse.hpp"
#include "settings.hpp"

namespace ddrun::cli {

namespace {

constexpr std::string_view opening =
    R"(Usage: ddrun [options] [--] program [args...] [: -n N program [args...]]...
       ddrun config show [--json] [options] [--] [program [args...]]
       ddrun config schema
       ddrun store [get|set|add|wait|list|del ...] (see ddrun store --help)
       ddrun rendezvous [options] (see ddrun rendezvous --help)
       ddrun secret new [--print]
       ddrun env [--json] [options] (what a scheduler says of this machine)
       ddrun stacks [JOB] [--rank=RANKS] [--all-threads] [--json]
       ddrun completion bash|zsh|fish
       ddrun version [--json]

Starts a group of workers, sets their rank environment, serves the rendezvous
store, and restarts the group on failure. A program that ends in .py, -m module,
or what only Python can run, runs with Python; anything else is executed itself.
${local_rank} and ${rank} in its arguments are replaced; nothing else behind
the program is touched, but that a -- directly behind Python's or --no-python's
is dropped, as torchrun does it.
)";

constexpr std::string_view closing =
    R"(
Times are seconds or carry a unit (500ms, 90s, 20m, 1h30m). Every option has a
variable (--log-dir: DDRUN_LOG_DIR, else torchrun's PET_LOG_DIR) and a key in
--config files (log-dir = "logs"). The command line wins over variables, and
variables over the file. Words may be joined by - or _.

Exit status: 0 all workers succeeded; else that of the first worker that failed
(128+N for signal N); 2 wrong usage; 124 --timeout; 125 ddrun itself failed;
126 the program cannot be executed; 127 there is no such program.

Examples:
  ddrun -n 4 ./train --lr 0.1
      four workers, their lines on the console with the rank in front
  ddrun -n gpu --max-restarts=3 --log-dir=logs --tee=3 train.py
      one worker per GPU, logged, started again up to three times
  ddrun -n 8 --timeout=10m --report=result.json -- ./smoke-test
      for CI: bounded, with a JSON report of how every worker ended
  ddrun --config=launch.toml --dry-run
      show what a settings file would start
)";

/// Those of -h.
constexpr std::string_view most_used =
    "nproc-per-node env preload max-restarts timeout report tee log-dir dry-run nnodes rdzv-endpoint hosts";

/// The page of docs/ that says more.
std::string_view page_of(const Option& option) {
  constexpr std::pair<std::string_view, std::string_view> pages[] = {
      {"several-programs.md", "role service world gpus port ready ready-timeout stdin"},
      {"environment.md", "env-file interface keep-scheduler-env"},
      {"preload.md", "preload"},
      {"mpi.md", "mpi mpi-lib"},
      {"debugging.md", "timeout report signals-to-all"},
      {"integrations.md", "ci"},
      {"schedulers.md", "env-detect"},
      {"several-machines-failures.md", "heartbeat-interval heartbeat-misses"},
      {"several-machines-reference.md", "before before-each after events"},
      {"security.md", "secret-file insecure"},
      {"store.md", "store-max-memory master-addr"},
      {"coming-from-torchrun.md", "run-path signals-to-handle event-log-handler standalone master-port"},
      {"options.md", "module same-cause success-on duplicate-stderr-filters export"},
  };
  for (const auto& [page, names] : pages) {
    if (has_word(names, option.name)) return page;
  }
  for (const OptionGroup& group : option_groups()) {
    if (&option >= group.options.data() && &option < group.options.data() + group.options.size()) return group.page;
  }
  return "options.md";
}

std::string explanation(const Option& option, const ParsedOptions& defaults) {
  std::string text(option.help);
  if (!option.is_setting() || !option.takes_value()) return text;
  const auto values = option.show(defaults);
  if (values.size() == 1) text += concat(" (default: ", values[0], ")");
  return text;
}

}  // namespace

const std::string_view config_help =
    R"(Usage: ddrun config show [--json] [options] [--] [program [args...]]
       ddrun config schema

show prints every setting that 'ddrun [options] program' would have, and where
its value comes from: the command line, a variable, a file or the default.
Nothing is started. The output is itself a settings file with the same meaning.
  --json              The same for programs

schema prints the JSON schema of settings files, for editors and checks.

Options are those of 'ddrun --help'. A program called config: ddrun -- config
)";

const std::string_view env_help =
    R"(Usage: ddrun env [--json] [options]

Shows what a scheduler, a cloud or torchrun's variables say of this machine's
place in a job, from which variable, and what 'ddrun [options] program' would
make of it here. Nothing is started.
  --json              The same for programs

Options are those of 'ddrun --help'. With words of env(1) behind it, env(1) is
the program: 'ddrun env FOO=1 ./p', 'ddrun env -u FOO ./p' and 'ddrun env ./p'
start ./p as 'ddrun -- env ...' does.
)";

std::string help_text() {
  const ParsedOptions defaults;
  std::string text(opening);
  for (const OptionGroup& group : option_groups()) {
    text += concat("\n", group.title, ":\n");
    for (const Option& option : group.options) {
      text += argv::describe(as_argument(option), explanation(option, defaults));
    }
  }
  text += closing;
  return text;
}

std::string short_help_text() {
  const ParsedOptions defaults;
  std::string text(
      R"(Usage: ddrun [options] program [args...]

Starts a group of workers, sets their rank environment, serves the rendezvous
store, and restarts the group on failure.

)");
  for (const Option* option : all_options()) {
    if (has_word(most_used, option->name)) text += argv::describe(as_argument(*option), explanation(*option, defaults));
  }
  return text + R"(
  ddrun --help                all options, examples, exit statuses
  ddrun --help log-dir        one option, its variable, its key in a file
  ddrun stacks                where each rank of a running job is
  man ddrun                   the manual
)";
}

const Option* option_asked_for(std::string_view word) {
  if (word.starts_with('-')) {
    const auto typed = option_at(std::array{std::string(word), std::string("value")});
    return typed ? typed->option : nullptr;
  }
  if (const Option* const option = find_option(word)) return option;
  const std::string start = with_dashes(word);
  const Option* found = nullptr;
  for (const Option* option : all_options()) {
    if (!option->name.starts_with(start)) continue;
    if (found != nullptr) return nullptr;
    found = option;
  }
  return found;
}

std::string option_help(const Option& option) {
  std::string text = argv::describe(as_argument(option), explanation(option, ParsedOptions()));
  text += '\n';
  const auto row = [&](std::string_view title, std::string_view what) {
    if (!what.empty()) text += concat("  ", title, std::string(10 - title.size(), ' '), what, "\n");
  };
  if (option.choices.find(' ') != std::string_view::npos) row("Choices", join(split(option.choices, ' '), ", "));
  row("Variable", join(variables_of(option), ", else "));
  if (option.is_setting()) row("Key", concat(option.name, " (", accepted_types_of(option.kind).wanted, ")"));
  row("Scope", is_of_program(option) ? "each program" : "the whole job");
  row("Page", concat("docs/", page_of(option)));
  return text;
}

std::string version_text(const VersionInfo& version) {
  std::string text = concat("ddrun ", version.version);
  if (!version.commit.empty()) text += concat(" (commit ", version.commit, ")");
  text += '\n';
  std::size_t widest = 0;
  for (const auto& [name, value] : version.features) widest = std::max(widest, name.size());
  for (const auto& [name, value] : version.features) {
    text += concat("  ", name, std::string(widest - name.size() + 2, ' '), value, "\n");
  }
  return text;
}

std::string version_json(const VersionInfo& version) {
  nlohmann::ordered_json json;
  json["version"] = version.version;
  json["commit"] = version.commit;
  json["features"] = nlohmann::ordered_json::object();
  for (const auto& [name, value] : version.features) json["features"][name] = value;
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace ddrun::cli
