#include "ddrun/cli/parse.hpp"

#include <algorithm>
#include <array>
#include <iterator>

#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/text.hpp"
#include "settings.hpp"

namespace ddrun::cli {

namespace {

enum class Wanted { launch, config, place };

MessageSettings message_settings_of(const Draft& draft, const Environment& environment, bool stderr_is_tty) {
  MessageSettings settings;
  if (draft.quiet > 0) settings.shown = draft.quiet == 1 ? Level::warning : Level::error;
  if (draft.verbose > 0) settings.shown = draft.verbose == 1 ? Level::info : Level::debug;
  settings.color = draft.color == ColorMode::always ||
                   (draft.color == ColorMode::automatic && stderr_is_tty && !environment.get("NO_COLOR") &&
                    environment.get("TERM").value_or("dumb") != "dumb");
  return settings;
}

/// Decided here for all hosts, or of no use there.
constexpr std::array<std::string_view, 18> kept_here{
    "ci",          "dry-run",   "color",      "hosts",         "hostfile",     "ssh",
    "export",      "node-rank", "standalone", "rdzv-endpoint", "rdzv-backend", "rdzv-lease",
    "secret-file", "insecure",  "env-detect", "nnodes",        "master-port",  "signals-to-all"};

/// A command line that means the same as all that was given here by whatever way (typed, variables, a file), but for
/// what concerns this machine alone: "--name=value"…, "--", the program and its arguments. For a ddrun that is started
/// elsewhere and looks at nothing but this.
std::vector<std::string> words_for_hosts(const Draft& draft, const Settings& settings) {
  std::vector<std::string> words;
  for (const Option* option : all_options()) {
    if (!option->is_setting() || settings.of(*option).source == Source::standard) continue;
    if (std::find(kept_here.begin(), kept_here.end(), option->name) != kept_here.end()) continue;
    for (const std::string& value : option->show(draft)) words.push_back(concat("--", option->name, "=", value));
  }
  words.emplace_back("--");
  words.push_back(draft.spec.program.name);
  words.insert(words.end(), draft.spec.program.args.begin(), draft.spec.program.args.end());
  return words;
}

std::string explain(std::string_view name) {
  const ForeignOption* const option = find_foreign_option(name);
  return option == nullptr ? std::string() : concat(" (of ", option->launchers, "); ", option->hint);
}

Result<argv::CommandLine> read_command_line(std::span<const std::string> arguments, Wanted wanted) {
  static const std::vector<argv::Option> options = [] {
    std::vector<argv::Option> all;
    for (const Option* option : all_options()) all.push_back(as_argument(*option));
    all.push_back({"json"});  // only where a text is wanted
    return all;
  }();
  const std::span<const argv::Option> known(options.data(), options.size() - (wanted == Wanted::launch ? 1 : 0));
  return argv::read({known, argv::Words::program, "ddrun --help", explain, "np"}, arguments);
}

/// Everything that the options of one command line lead to.
class LaunchReader {
 public:
  explicit LaunchReader(const Asking& asking)
      : environment_(asking.environment), version_(asking.version), stderr_is_tty_(asking.stderr_is_tty) {}

  std::variant<Launch, PrintAndExit> run(std::span<const std::string> arguments, Wanted wanted) {
    auto line = read_command_line(arguments, wanted);
    if (!line) return usage_error(line.error().message);
    if (line->action != nullptr) return answer(line->action->name == "help" ? help(wanted) : version_text(version_));
    if (line->has("print-completion")) return completion(line->last("print-completion"));
    const bool json = line->has("json");
    if (auto done = settle(std::move(*line)); !done) return usage_error(done.error().message);
    if (wanted == Wanted::config) {
      return answer((json ? config_json : config_text)(draft_, settings_, program_origin_));
    }
    if (program_origin_.empty() && wanted == Wanted::launch) {
      return usage_error("no program given: ddrun [options] [--] program [args...] (see 'ddrun --help')");
    }
    Launch launch;
    launch.json = json;
    launch.messages = message_settings_of(draft_, environment_, stderr_is_tty_);
    if (draft_.spec.remote.asked_for()) launch.words_for_hosts = words_for_hosts(draft_, settings_);
    else export_here(draft_.spec, environment_, warnings_);
    launch.warnings = std::move(warnings_);
    launch.given = settings_.given();
    launch.env_detect = draft_.env_detect;
    launch.ci = draft_.ci;
    launch.spec = std::move(draft_.spec);
    return launch;
  }

  static std::string help(Wanted wanted) {
    return std::string(wanted == Wanted::launch ? help_text() : wanted == Wanted::place ? env_help : config_help);
  }

  Result<void> settle(argv::CommandLine line) {
    std::string path(environment_.get("DDRUN_CONFIG").value_or(""));
    if (line.has("config")) path = line.last("config");
    if (line.has("config") && path.empty()) return fail(Errc::invalid_argument, "--config needs the name of a file");
    ConfigFile file;
    if (!path.empty()) {
      auto read = read_config(path);
      if (!read) return tl::unexpected<Error>(std::move(read.error()));
      file = std::move(*read);
    }
    settings_.add_file(file);
    settings_.add_variables(environment_);
    settings_.add_command_line(line);
    if (auto done = settle_exclusions(settings_); !done) return done;
    if (auto done = settings_.apply_to(draft_); !done) return done;
    if (auto done = check_together(draft_, settings_, warnings_); !done) return done;
    return take_program(std::move(line.words), line.separated, std::move(file));
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

}  // namespace

PrintAndExit usage_error(std::string_view message) {
  std::string text = concat("ddrun: error: ", message);
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
  return {text + "\n", true, exit_codes::usage};
}

PrintAndExit answer(std::string text) { return {std::move(text), false, 0}; }

std::variant<Launch, PrintAndExit> parse_launch(std::span<const std::string> words, const Asking& asking) {
  return LaunchReader(asking).run(words, Wanted::launch);
}

std::variant<Launch, PrintAndExit> parse_place(std::span<const std::string> words, const Asking& asking) {
  return LaunchReader(asking).run(words, Wanted::place);
}

PrintAndExit show_config(std::span<const std::string> words, const Asking& asking) {
  return std::get<PrintAndExit>(LaunchReader(asking).run(words, Wanted::config));
}

}  // namespace ddrun::cli
