#include "ddrun/cli/parse.hpp"

#include <algorithm>
#include <exception>
#include <iterator>
#include <span>

#include "argv_split.hpp"
#include "checks.hpp"
#include "cli11_values.hpp"
#include "config_file.hpp"
#include "ddrun/base/text.hpp"
#include "rendezvous_words.hpp"
#include "secret_words.hpp"
#include "settings.hpp"
#include "store_words.hpp"
#include "texts.hpp"
#include "words_for_hosts.hpp"

namespace ddrun::cli {

namespace {

constexpr int usage_status = 2;
constexpr int internal_status = 125;

/// One line, whatever control characters were in what was typed.
PrintAndExit usage_error(std::string_view message) {
  std::string text = concat("ddrun: error: ", message);
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
  return {text + "\n", true, usage_status};
}

PrintAndExit answer(std::string text) { return {std::move(text), false, 0}; }

MessageSettings message_settings_of(const Draft& draft, const EnvironmentView& environment, bool stderr_is_tty) {
  MessageSettings settings;
  if (draft.quiet > 0) settings.shown = draft.quiet == 1 ? Level::warning : Level::error;
  if (draft.verbose > 0) settings.shown = draft.verbose == 1 ? Level::info : Level::debug;
  settings.color = draft.color == ColorMode::always ||
                   (draft.color == ColorMode::automatic && stderr_is_tty && !environment.get("NO_COLOR") &&
                    environment.get("TERM").value_or("dumb") != "dumb");
  return settings;
}

PrintAndExit completion(std::string_view shell) {
  std::string script = completion_script(shell);
  if (!script.empty()) return answer(std::move(script));
  return usage_error(concat("no completion for '", shell, "'; there is one for bash, zsh and fish"));
}

/// Everything that the options of one command line lead to.
class Launcher {
 public:
  Launcher(const EnvironmentView& environment, const VersionInfo& version, bool stderr_is_tty)
      : environment_(environment), version_(version), stderr_is_tty_(stderr_is_tty) {}

  Parsed launch(std::span<const std::string> arguments) { return run(arguments, Wanted::launch); }
  Parsed show_config(std::span<const std::string> arguments) { return run(arguments, Wanted::config); }
  Parsed show_place(std::span<const std::string> arguments) { return run(arguments, Wanted::place); }

 private:
  enum class Wanted { launch, config, place };

  Parsed run(std::span<const std::string> arguments, Wanted wanted) {
    auto argv = split_argv(arguments);
    if (!argv) return usage_error(argv.error().message);
    if (argv->action != nullptr) return answer(argv->action->name == "help" ? help_text() : version_text(version_));
    const auto values = read_values(*argv);
    if (!values) return usage_error(values.error().message);
    if (const std::string* shell = value_of(*values, "print-completion")) return completion(*shell);
    if (auto done = settle(*values, std::move(*argv)); !done) return usage_error(done.error().message);
    if (wanted == Wanted::config) return answer(config_text(draft_, settings_, program_origin_));
    if (program_origin_.empty() && wanted == Wanted::launch) {
      return usage_error("no program given: ddrun [options] [--] program [args...] (see 'ddrun --help')");
    }
    Launch launch;
    launch.messages = message_settings_of(draft_, environment_, stderr_is_tty_);
    launch.warnings = std::move(warnings_);
    launch.given = settings_.given();
    launch.env_detect = draft_.env_detect;
    if (draft_.spec.remote.asked_for()) launch.words_for_hosts = words_for_hosts(draft_, settings_);
    launch.spec = std::move(draft_.spec);
    if (wanted == Wanted::place) return ShowPlace{std::move(launch), false};
    return launch;
  }

  static const std::string* value_of(const std::vector<OptionValues>& all, std::string_view name) {
    for (const auto& [option, values] : all) {
      if (option->name == name && !values.empty()) return &values.back();
    }
    return nullptr;
  }

  Result<void> settle(const std::vector<OptionValues>& typed, Argv argv) {
    std::string path(environment_.get("DDRUN_CONFIG").value_or(""));
    if (const std::string* given = value_of(typed, "config")) {
      if (given->empty()) return fail(Errc::invalid_argument, "--config needs the name of a file");
      path = *given;
    }
    ConfigFile file;
    if (!path.empty()) {
      auto read = read_config(path);
      if (!read) return tl::unexpected<Error>(std::move(read.error()));
      file = std::move(*read);
    }
    settings_.add_file(file);
    settings_.add_variables(environment_);
    settings_.add_command_line(typed);
    if (auto done = settle_exclusions(settings_); !done) return done;
    if (auto done = settings_.apply_to(draft_); !done) return done;
    if (auto done = check_together(draft_, settings_, warnings_); !done) return done;
    return take_program(std::move(argv.program), argv.separated, std::move(file));
  }

  Result<void> take_program(std::vector<std::string> typed, bool separated, ConfigFile file) {
    const bool from_command_line = !typed.empty();
    program_origin_ = !typed.empty() ? "command line" : file.program_where.empty() ? "" : "file " + file.program_where;
    std::vector<std::string> words = typed.empty() ? std::move(file.program) : std::move(typed);
    if (words.empty()) return {};
    if (words.front().empty()) return fail(Errc::invalid_argument, "the program's name is empty");
    draft_.spec.program.name = std::move(words.front());
    draft_.spec.program.args.assign(std::make_move_iterator(words.begin() + 1), std::make_move_iterator(words.end()));
    choose_program_kind(draft_, settings_, warnings_);
    if (from_command_line && !separated) drop_separator(draft_);
    return {};
  }

  const EnvironmentView& environment_;
  const VersionInfo& version_;
  bool stderr_is_tty_;
  Settings settings_;
  Draft draft_;
  std::string program_origin_;  ///< empty: no program
  std::vector<std::string> warnings_;
};

Parsed run_config(std::span<const std::string> rest, Launcher& launcher) {
  if (!rest.empty() && rest[0] == "show") return launcher.show_config(rest.subspan(1));
  return usage_error("usage: ddrun config show [options] [--] [program] (a program called config: ddrun -- config)");
}

/// `ddrun env`, with the options of a launch, whose program may be there or not.
Parsed run_env(std::span<const std::string> rest, Launcher& launcher) {
  // Of ddrun's options none is called so, and the program is not started: it may stand anywhere before --.
  std::vector<std::string> options(rest.begin(), rest.end());
  const auto end = std::find(options.begin(), options.end(), "--");
  const auto kept = std::remove(options.begin(), end, "--json");
  const bool json = kept != end;
  options.erase(kept, end);
  Parsed parsed = launcher.show_place(options);
  if (auto* show = std::get_if<ShowPlace>(&parsed)) show->json = json;
  return parsed;
}

PrintAndExit run_completion(std::span<const std::string> rest) {
  if (rest.size() == 1) return completion(rest[0]);
  return usage_error("usage: ddrun completion bash|zsh|fish (a program called completion: ddrun -- completion)");
}

PrintAndExit run_version(std::span<const std::string> rest, const VersionInfo& version) {
  if (rest.empty() || (rest.size() == 1 && rest[0] == "--verbose")) return answer(version_text(version));
  if (rest.size() == 1 && rest[0] == "--json") return answer(version_json(version));
  return usage_error("usage: ddrun version [--json] (a program called version: ddrun -- version)");
}

/// Only the very first word can be one of ddrun's own: `ddrun -n 2 env` starts env.
Parsed dispatch(std::span<const std::string> arguments, const EnvironmentView& environment, const VersionInfo& version,
                bool stderr_is_tty) {
  Launcher launcher(environment, version, stderr_is_tty);
  if (!arguments.empty()) {
    const std::string_view word = arguments[0];
    const auto rest = arguments.subspan(1);
    if (word == "config") return run_config(rest, launcher);
    if (word == "completion") return run_completion(rest);
    if (word == "version") return run_version(rest, version);
    if (word == "store") return parse_store(rest, environment);
    if (word == "rendezvous") return parse_rendezvous(rest, environment);
    if (word == "secret") return parse_secret(rest);
    if (word == "env") return run_env(rest, launcher);
  }
  return launcher.launch(arguments);
}

}  // namespace

Parsed parse(const std::vector<std::string>& arguments, const EnvironmentView& environment, const VersionInfo& version,
             bool stderr_is_tty) {
  try {
    return dispatch(arguments, environment, version, stderr_is_tty);
  } catch (const std::exception& error) {
    return PrintAndExit{concat("ddrun: error: cannot read the command line: ", error.what(), "\n"), true,
                        internal_status};
  }
}

}  // namespace ddrun::cli
