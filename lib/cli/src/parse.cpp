#include "ddrun/cli/parse.hpp"

#include <algorithm>
#include <exception>
#include <iterator>
#include <span>

#include "argv_split.hpp"
#include "checks.hpp"
#include "cli11_values.hpp"
#include "config_file.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/text.hpp"
#include "rendezvous_words.hpp"
#include "secret_words.hpp"
#include "settings.hpp"
#include "store_words.hpp"
#include "texts.hpp"
#include "words_for_hosts.hpp"

namespace ddrun::cli {

namespace {

/// One line, whatever control characters were in what was typed.
PrintAndExit usage_error(std::string_view message) {
  std::string text = concat("ddrun: error: ", message);
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
  return {text + "\n", true, exit_codes::usage};
}

PrintAndExit answer(std::string text) { return {std::move(text), false, 0}; }

MessageSettings message_settings_of(const Draft& draft, const Environment& environment, bool stderr_is_tty) {
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
  Launcher(const Environment& environment, const VersionInfo& version, bool stderr_is_tty)
      : environment_(environment), version_(version), stderr_is_tty_(stderr_is_tty) {}

  Parsed launch(std::span<const std::string> arguments) { return run(arguments, Wanted::launch); }
  Parsed show_config(std::span<const std::string> arguments) { return run(arguments, Wanted::config); }
  Parsed show_config_as_json(std::span<const std::string> arguments) { return run(arguments, Wanted::config_json); }
  Parsed show_place(std::span<const std::string> arguments) { return run(arguments, Wanted::place); }

 private:
  enum class Wanted { launch, config, config_json, place };

  Parsed run(std::span<const std::string> arguments, Wanted wanted) {
    auto argv = split_argv(arguments);
    if (!argv) return usage_error(argv.error().message);
    if (argv->action != nullptr) return answer(argv->action->name == "help" ? help(wanted) : version_text(version_));
    const auto values = read_values(*argv);
    if (!values) return usage_error(values.error().message);
    if (const std::string* shell = value_of(*values, "print-completion")) return completion(*shell);
    if (auto done = settle(*values, std::move(*argv)); !done) return usage_error(done.error().message);
    if (wanted == Wanted::config) return answer(config_text(draft_, settings_, program_origin_));
    if (wanted == Wanted::config_json) return answer(config_json(draft_, settings_, program_origin_));
    if (program_origin_.empty() && wanted == Wanted::launch) {
      return usage_error("no program given: ddrun [options] [--] program [args...] (see 'ddrun --help')");
    }
    Launch launch;
    launch.messages = message_settings_of(draft_, environment_, stderr_is_tty_);
    if (draft_.spec.remote.asked_for()) launch.words_for_hosts = words_for_hosts(draft_, settings_);
    else export_here(draft_.spec, environment_, warnings_);
    launch.warnings = std::move(warnings_);
    launch.given = settings_.given();
    launch.env_detect = draft_.env_detect;
    launch.spec = std::move(draft_.spec);
    if (wanted == Wanted::place) return ShowPlace{std::move(launch), false};
    return launch;
  }

  static std::string help(Wanted wanted) {
    return std::string(wanted == Wanted::launch ? help_text() : wanted == Wanted::place ? env_help : config_help);
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

  const Environment& environment_;
  const VersionInfo& version_;
  bool stderr_is_tty_;
  Settings settings_;
  Draft draft_;
  std::string program_origin_;  ///< empty: no program
  std::vector<std::string> warnings_;
};

bool asks_for_help(std::span<const std::string> words) {
  return words.size() == 1 && (words[0] == "--help" || words[0] == "-h");
}

/// Takes `word`, which is no option of a launch, out of `words` where it stands before "--"; whether it was there.
bool take_out(std::vector<std::string>& words, std::string_view word) {
  const auto end = std::find(words.begin(), words.end(), "--");
  const auto kept = std::remove(words.begin(), end, word);
  const bool was_there = kept != end;
  words.erase(kept, end);
  return was_there;
}

Parsed run_config(std::span<const std::string> rest, Launcher& launcher) {
  if (asks_for_help(rest)) return answer(std::string(config_help));
  if (rest.empty() || rest[0] != "show") {
    return usage_error(
        "usage: ddrun config show [--json] [options] [--] [program] (a program called config: ddrun -- config)");
  }
  std::vector<std::string> options(rest.begin() + 1, rest.end());
  return take_out(options, "--json") ? launcher.show_config_as_json(options) : launcher.show_config(options);
}

/// `ddrun env`, with the options of a launch, whose program may be there or not. It is not started, so that its
/// options and --json may stand in any order.
Parsed run_env(std::span<const std::string> rest, Launcher& launcher) {
  std::vector<std::string> options(rest.begin(), rest.end());
  const bool json = take_out(options, "--json");
  Parsed parsed = launcher.show_place(options);
  auto* show = std::get_if<ShowPlace>(&parsed);
  if (show == nullptr) return parsed;
  const std::string& program = show->launch.spec.program.name;
  if (program.find('=') != std::string::npos && program.find('/') > program.find('=')) {
    return usage_error(concat("'ddrun env' starts nothing; for env(1) with ", program,
                              " write its options first: ddrun [options] -- env ", program, " ..."));
  }
  show->json = json;
  return parsed;
}

PrintAndExit run_completion(std::span<const std::string> rest) {
  constexpr std::string_view usage =
      "usage: ddrun completion bash|zsh|fish (a program called completion: ddrun -- completion)";
  if (asks_for_help(rest)) return answer(concat(usage, "\n"));
  if (rest.size() == 1) return completion(rest[0]);
  return usage_error(usage);
}

PrintAndExit run_version(std::span<const std::string> rest, const VersionInfo& version) {
  constexpr std::string_view usage = "usage: ddrun version [--json] (a program called version: ddrun -- version)";
  if (asks_for_help(rest)) return answer(concat(usage, "\n"));
  if (rest.empty() || (rest.size() == 1 && rest[0] == "--verbose")) return answer(version_text(version));
  if (rest.size() == 1 && rest[0] == "--json") return answer(version_json(version));
  return usage_error(usage);
}

Parsed dispatch(std::span<const std::string> arguments, const Environment& environment, const VersionInfo& version,
                bool stderr_is_tty);

/// `ddrun help`, and `ddrun help store`, which is `ddrun store --help`.
Parsed run_help(std::span<const std::string> rest, const Environment& environment, const VersionInfo& version) {
  if (rest.empty()) return answer(help_text());
  constexpr std::string_view words = "completion config env rendezvous secret store version";
  const auto known = split(words, ' ');
  if (rest.size() > 1 || std::find(known.begin(), known.end(), rest[0]) == known.end()) {
    return usage_error(
        "usage: ddrun help [completion|config|env|rendezvous|secret|store|version] (a program called "
        "help: ddrun -- help)");
  }
  const std::string asked[] = {rest[0], "--help"};
  return dispatch(asked, environment, version, false);
}

/// Only the very first word can be one of ddrun's own: `ddrun -n 2 env` starts env.
Parsed dispatch(std::span<const std::string> arguments, const Environment& environment, const VersionInfo& version,
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
    if (word == "env" && !starts_env_program(rest.empty() ? "" : rest[0])) return run_env(rest, launcher);
    if (word == "help") return run_help(rest, environment, version);
  }
  return launcher.launch(arguments);
}

}  // namespace

bool starts_env_program(std::string_view word) {
  if (word.empty()) return false;
  if (word.front() != '-' || word == "-") return true;
  if (word[1] != '-') return std::string_view("iu0CSa").find(word[1]) != std::string_view::npos;
  constexpr std::string_view only_of_env =
      "--argv0 --block-signal --default-signal --ignore-environment --ignore-signal --list-signal-handling --null "
      "--split-string --unset";
  const auto names = split(only_of_env, ' ');
  return std::find(names.begin(), names.end(), word.substr(0, word.find('='))) != names.end();
}

Parsed parse(const std::vector<std::string>& arguments, const Environment& environment, const VersionInfo& version,
             bool stderr_is_tty) {
  try {
    return dispatch(arguments, environment, version, stderr_is_tty);
  } catch (const std::exception& error) {
    return PrintAndExit{concat("ddrun: error: cannot read the command line: ", error.what(), "\n"), true,
                        exit_codes::launcher_failed};
  }
}

}  // namespace ddrun::cli
