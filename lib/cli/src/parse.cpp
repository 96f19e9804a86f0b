#include "ddrun/cli/parse.hpp"

#include <algorithm>
#include <array>
#include <iterator>

#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/cli/values.hpp"
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
  args.push_back(parsed.program.name);
  args.insert(args.end(), parsed.program.args.begin(), parsed.program.args.end());
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
    auto parts = read_parts(arguments, command != Command::launch, warnings_);
    if (!parts) {
      PrintAndExit all{"", true, exit_codes::usage};
      for (const std::string& one : split(parts.error().message, '\n')) all.text += usage_error(one).text;
      return all;
    }
    const argv::CommandLine& line = parts->front();
    if (line.action != nullptr) return answer(line, command);
    if (line.has("print-completion")) return completion(line.last("print-completion"));
    const bool json = line.has("json");
    const bool has_separator = line.has_separator;
    if (auto done = read_programs(*parts); !done) return usage_error(done.error().message);
    if (command == Command::config) return stdout_text((json ? config_json : config_text)(programs_));
    ParsedProgram& first = programs_.front();
    ParsedOptions& job = first.options;
    if (first.origin.empty() && command == Command::launch) {
      constexpr std::array any{Kind::file, Kind::files, Kind::directory, Kind::names, Kind::text};
      const auto last = option_at(arguments.last(std::min<std::size_t>(arguments.size(), 2)));
      if (last && last->words == 2 && std::ranges::find(any, last->option->kind) != any.end())
        return usage_error(concat("no program given: --", last->option->name, " took '", last->value, "'"));
      return usage_error("no program given: ddrun [options] [--] program [args...] (see 'ddrun -h')");
    }
    job.spec.programs.clear();
    for (ParsedProgram& program : programs_) {
      merge_env_files(program.options, job.spec.remote.exported);
      job.spec.programs.push_back(program.options.program);
    }
    RendezvousSpec& rendezvous = job.spec.rendezvous;
    if (rendezvous.is_etcd() && rendezvous.endpoint.empty()) {
      rendezvous.endpoint = environment_.get("ETCDCTL_ENDPOINTS").value_or("");
    }
    if (job.spec.has_several_programs() && (job.spec.remote.asked_for() || rendezvous.several_machines())) {
      return usage_error(one_machine_only);
    }
    Launch launch;
    launch.json = json;
    if (job.spec.log.color == When::automatic && environment_.get("NO_COLOR")) job.spec.log.color = When::never;
    launch.messages = message_settings_of(job, environment_, stderr_is_tty_);
    if (job.spec.remote.asked_for()) launch.forwarded_args = forwarded_args(job, first.settings);
    else apply_exports(job.spec, environment_, warnings_);
    launch.warnings = std::move(warnings_);
    launch.has_separator = has_separator;
    launch.given = first.settings.given();
    launch.env_detect = job.env_detect;
    launch.ci = job.ci;
    launch.spec = std::move(job.spec);
    return launch;
  }

  /// --version and --help.
  [[nodiscard]] PrintAndExit answer(const argv::CommandLine& line, Command command) const {
    if (line.action->name != "help") return stdout_text(version_text(version_));
    if (command != Command::launch) return stdout_text(std::string(command == Command::env ? env_help : config_help));
    const std::string_view word = line.positionals.empty() ? "" : std::string_view(line.positionals.front());
    if (const Option* const option = option_asked_for(word)) return stdout_text(option_help(*option));
    if (word.size() > 1 && word.starts_with('-') && word != "--") {
      if (auto read = read_command_line({line.positionals.data(), 1}); !read) return usage_error(read.error().message);
    }
    return stdout_text(line.is_short ? short_help_text() : help_text());
  }

  /// Reads the settings file, and makes programs_ of it and of the parts of the command line.
  Result<void> read_programs(const std::vector<argv::CommandLine>& parts) {
    const argv::CommandLine& line = parts.front();
    std::string path(environment_.get("DDRUN_CONFIG").value_or(""));
    if (line.has("config")) path = line.last("config");
    if (line.has("config") && path.empty()) return fail(Errc::invalid_argument, "--config needs the name of a file");
    ConfigFile file;
    if (!path.empty()) file = TRY(read_config(path));
    warn_unknown_variables(environment_, warnings_);
    if (!file.tables.empty()) TRY(check_beside_tables(parts, file));
    const bool is_for_all = parts.size() > 1 && line.positionals.empty();
    const std::size_t count = std::max<std::size_t>(file.tables.size(), parts.size() - (is_for_all ? 1 : 0));
    programs_.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      Settings& settings = programs_[i].settings;
      const Scope scope = i == 0 ? Scope::all : Scope::program;
      settings.add_file(file.values, scope);
      if (!file.tables.empty()) settings.add_file(file.tables[i].values, Scope::program, Source::table);
      // A variable would be for all programs.
      if (i == 0) settings.add_variables(environment_, count > 1 ? Scope::job : Scope::all);
      if (i == 0 || is_for_all || !file.tables.empty()) settings.add_command_line(line, scope);
      const argv::CommandLine& part = file.tables.empty() ? parts[i + (is_for_all ? 1 : 0)] : parts.front();
      if (&part != &line) settings.add_command_line(part, Scope::program, Source::part);
      TRY(check_program(programs_[i]));
      const auto& in_file = file.tables.empty() ? file.program : file.tables[i].command;
      const std::string& where = file.tables.empty() ? file.program_where : file.tables[i].where;
      TRY(set_program(programs_[i], part, in_file, where));
    }
    const auto is_service = [](const ParsedProgram& program) { return program.options.program.is_service; };
    if (std::ranges::all_of(programs_, is_service)) {
      return bad(
          "every program is a --service: nothing would end the job; leave --service out for one (the router of a pure "
          "serving job, say)");
    }
    return count > 1 ? name_programs(programs_) : Result<void>();
  }

  /// The command line gives neither programs nor their options if the file does.
  static Result<void> check_beside_tables(const std::vector<argv::CommandLine>& parts, const ConfigFile& file) {
    const std::string& where = file.tables.front().where;
    if (parts.size() > 1 || !parts.front().positionals.empty()) {
      const auto& words = parts.front().positionals;
      return bad(concat("both the command line (", words.empty() ? ":" : words.front(), ") and [[program]] in ", where,
                        " give programs; leave one of them out"));
    }
    for (const auto& [typed, values] : parts.front().options) {
      const Option* const option = find_option(typed->name);
      if (option == nullptr || !is_of_program(*option) || option->name == "env") continue;
      return bad(concat("--", typed->name, " is of one program: write it in a [[program]] table (", where, ")"));
    }
    return {};
  }

  Result<void> check_program(ParsedProgram& program) {
    TRY(resolve_exclusions(program.settings));
    TRY(program.settings.apply_to(program.options));
    auto& from_files = program.options.file_warnings;
    std::move(from_files.begin(), from_files.end(), std::back_inserter(warnings_));
    return check_combinations(program.options, program.settings, warnings_);
  }

  /// Adds the variables of --env-file, of which a name's last counts, for names that neither --env nor -x sets.
  void merge_env_files(ParsedOptions& parsed, const std::vector<std::string>& exported) const {
    Variables& set = parsed.program.env;
    const auto is_set = [&](const std::string& name) {
      return std::any_of(set.begin(), set.end(), [&](const auto& one) { return one.first == name; }) ||
             std::any_of(exported.begin(), exported.end(), [&](const std::string& one) {
               return one.starts_with(name + "=") || (one == name && environment_.has(name));
             });
    };
    for (auto one = parsed.file_variables.rbegin(); one != parsed.file_variables.rend(); ++one) {
      if (!is_set(one->first)) set.push_back(std::move(*one));
    }
  }

  /// Of `part`, or without one of the file.
  Result<void> set_program(ParsedProgram& parsed, const argv::CommandLine& part,
                           const std::vector<std::string>& in_file, const std::string& where) {
    const bool from_command_line = !part.positionals.empty();
    parsed.origin = from_command_line ? "command line" : where.empty() ? "" : "file " + where;
    const std::vector<std::string>& words = from_command_line ? part.positionals : in_file;
    if (words.empty()) return {};
    if (words.front().empty()) return fail(Errc::invalid_argument, "the program's name is empty");
    ParsedOptions& options = parsed.options;
    options.program.name = words.front();
    options.program.args.assign(words.begin() + 1, words.end());
    choose_program_kind(options, parsed.settings, warnings_);
    TRY(check_launcher(options.program, options.spec, part.has_separator || !from_command_line, warnings_));
    if (stderr_is_tty_ && !part.has_separator) warn_misplaced(parsed, warnings_);
    if (from_command_line && !part.has_separator) drop_separator(options);
    return {};
  }

  const Environment& environment_;
  const VersionInfo& version_;
  bool stderr_is_tty_;
  std::vector<ParsedProgram> programs_;
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
