#include "ddrun/cli/parse.hpp"

#include <algorithm>
#include <array>
#include <iterator>

#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/text.hpp"
#include "settings.hpp"

namespace ddrun::cli {

namespace {

enum class Command { launch, config, env };

MessageSettings message_settings_of(const ParsedOptions& parsed, const Environment& environment, bool stderr_is_tty) {
  MessageSettings settings;
  if (parsed.quiet > 0) settings.shown = parsed.quiet == 1 ? Level::warning : Level::error;
  if (parsed.verbose > 0) settings.shown = parsed.verbose == 1 ? Level::info : Level::debug;
  settings.color =
      parsed.spec.log.color == When::always ||
      (parsed.spec.log.color == When::automatic && stderr_is_tty && environment.get("TERM").value_or("dumb") != "dumb");
  return settings;
}

/// Options that this machine applies for all hosts, or that have no meaning there.
constexpr std::array<std::string_view, 21> not_forwarded{
    "ci",         "dry-run",    "color",         "hosts",          "hostfile",        "ssh",         "export",
    "node-rank",  "standalone", "rdzv-endpoint", "rdzv-backend",   "rdzv-lease",      "secret-file", "insecure",
    "env-detect", "nnodes",     "master-port",   "signals-to-all", "end-with-parent", "env-file",    "fold"};

/// The command line for ddrun on another host: "--name=value"…, "--", the program and its arguments. Contains all
/// settings that were given here (typed, variables, a file) except `not_forwarded`; that ddrun reads no variables or
/// files.
std::vector<std::string> forwarded_args(const ParsedOptions& parsed, const Settings& settings) {
  std::vector<std::string> args;
  for (const Option* option : all_options()) {
    if (!option->is_setting()) continue;
    // The variables of --env-file travel as --env.
    if (settings.of(*option).source == Source::standard && option->name != "env") continue;
    if (std::find(not_forwarded.begin(), not_forwarded.end(), option->name) != not_forwarded.end()) continue;
    for (const std::string& value : option->show(parsed)) args.push_back(concat("--", option->name, "=", value));
  }
  args.emplace_back("--");
  args.push_back(parsed.spec.program.name);
  args.insert(args.end(), parsed.spec.program.args.begin(), parsed.spec.program.args.end());
  return args;
}

}  // namespace

Result<argv::CommandLine> read_command_line(std::span<const std::string> arguments, bool has_json) {
  static const std::vector<argv::Option> options = [] {
    std::vector<argv::Option> all;
    for (const Option* option : all_options()) all.push_back(as_argument(*option));
    all.push_back({"json"});  // not for a launch
    return all;
  }();
  const std::span<const argv::Option> known(options.data(), options.size() - (has_json ? 0 : 1));
  return argv::read({known, argv::Positionals::program, "ddrun --help", explain_foreign_option, "np"}, arguments);
}

namespace {

/// Parses one command line into a Launch or a text.
class LaunchReader {
 public:
  explicit LaunchReader(const ParseContext& context)
      : environment_(context.environment), version_(context.version), stderr_is_tty_(context.stderr_is_tty) {}

  std::variant<Launch, PrintAndExit> run(std::span<const std::string> arguments, Command command) {
    auto line = read_command_line(arguments, command != Command::launch);
    if (!line) {
      PrintAndExit all{"", true, exit_codes::usage};
      for (const std::string& one : split(line.error().message, '\n')) all.text += usage_error(one).text;
      return all;
    }
    if (line->action != nullptr)
      return stdout_text(line->action->name == "help" ? help(command) : version_text(version_));
    if (line->has("print-completion")) return completion(line->last("print-completion"));
    const bool json = line->has("json");
    if (auto done = apply_all(std::move(*line)); !done) return usage_error(done.error().message);
    if (command == Command::config) {
      return stdout_text((json ? config_json : config_text)(parsed_, settings_, program_origin_));
    }
    if (program_origin_.empty() && command == Command::launch) {
      return usage_error("no program given: ddrun [options] [--] program [args...] (see 'ddrun --help')");
    }
    merge_env_files();
    RendezvousSpec& rendezvous = parsed_.spec.rendezvous;
    if (rendezvous.is_etcd() && rendezvous.endpoint.empty()) {
      rendezvous.endpoint = environment_.get("ETCDCTL_ENDPOINTS").value_or("");
    }
    Launch launch;
    launch.json = json;
    if (parsed_.spec.log.color == When::automatic && environment_.get("NO_COLOR")) parsed_.spec.log.color = When::never;
    launch.messages = message_settings_of(parsed_, environment_, stderr_is_tty_);
    if (parsed_.spec.remote.asked_for()) launch.forwarded_args = forwarded_args(parsed_, settings_);
    else apply_exports(parsed_.spec, environment_, warnings_);
    launch.warnings = std::move(warnings_);
    launch.has_separator = has_separator_;
    launch.given = settings_.given();
    launch.env_detect = parsed_.env_detect;
    launch.ci = parsed_.ci;
    launch.spec = std::move(parsed_.spec);
    return launch;
  }

  static std::string help(Command command) {
    return std::string(command == Command::launch ? help_text() : command == Command::env ? env_help : config_help);
  }

  Result<void> apply_all(argv::CommandLine line) {
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
    warn_unknown_variables(environment_, warnings_);
    settings_.add_command_line(line);
    if (auto done = resolve_exclusions(settings_); !done) return done;
    if (auto done = settings_.apply_to(parsed_); !done) return done;
    std::move(parsed_.file_warnings.begin(), parsed_.file_warnings.end(), std::back_inserter(warnings_));
    if (auto done = check_combinations(parsed_, settings_, warnings_); !done) return done;
    return set_program(std::move(line.positionals), line.has_separator, std::move(file));
  }

  /// Adds the variables of --env-file, of which a name's last counts, for names that neither --env nor -x sets.
  void merge_env_files() {
    Variables& set = parsed_.spec.env;
    const auto& exported = parsed_.spec.remote.exported;
    const auto is_set = [&](const std::string& name) {
      return std::any_of(set.begin(), set.end(), [&](const auto& one) { return one.first == name; }) ||
             std::any_of(exported.begin(), exported.end(), [&](const std::string& one) {
               return one.starts_with(name + "=") || (one == name && environment_.has(name));
             });
    };
    for (auto one = parsed_.file_variables.rbegin(); one != parsed_.file_variables.rend(); ++one) {
      if (!is_set(one->first)) set.push_back(std::move(*one));
    }
  }

  Result<void> set_program(std::vector<std::string> typed, bool has_separator, ConfigFile file) {
    const bool from_command_line = !typed.empty();
    program_origin_ = !typed.empty() ? "command line" : file.program_where.empty() ? "" : "file " + file.program_where;
    std::vector<std::string> args = typed.empty() ? std::move(file.program) : std::move(typed);
    if (args.empty()) return {};
    if (args.front().empty()) return fail(Errc::invalid_argument, "the program's name is empty");
    parsed_.spec.program.name = std::move(args.front());
    parsed_.spec.program.args.assign(std::make_move_iterator(args.begin() + 1), std::make_move_iterator(args.end()));
    choose_program_kind(parsed_, settings_, warnings_);
    warn_slips(parsed_.spec, warnings_);
    has_separator_ = has_separator;
    if (from_command_line && !has_separator) drop_separator(parsed_);
    return {};
  }

  const Environment& environment_;
  const VersionInfo& version_;
  bool stderr_is_tty_;
  Settings settings_;
  ParsedOptions parsed_;
  bool has_separator_ = false;
  std::string program_origin_;  ///< where the program was given; empty: no program
  std::vector<std::string> warnings_;
};

}  // namespace

PrintAndExit usage_error(std::string_view message) {
  std::string text = concat("ddrun: error: ", message);
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
  return {text + "\n", true, exit_codes::usage};
}

PrintAndExit stdout_text(std::string text) { return {std::move(text), false, 0}; }

std::variant<Launch, PrintAndExit> parse_launch(std::span<const std::string> args, const ParseContext& context) {
  return LaunchReader(context).run(args, Command::launch);
}

std::variant<Launch, PrintAndExit> parse_env_command(std::span<const std::string> args, const ParseContext& context) {
  return LaunchReader(context).run(args, Command::env);
}

PrintAndExit show_config(std::span<const std::string> args, const ParseContext& context) {
  return std::get<PrintAndExit>(LaunchReader(context).run(args, Command::config));
}

}  // namespace ddrun::cli
