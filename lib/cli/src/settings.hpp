#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/environment.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/cluster/complete.hpp"
#include "option_table.hpp"

// The settings from the command line, the settings file and variables: merged and checked.
namespace ddrun::cli {

struct FileValue {
  const Option* option;
  std::vector<std::string> values;  ///< as on a command line
  std::string key;                  ///< as written
  std::string where;                ///< "FILE:LINE:COLUMN"
};

/// A [[program]].
struct ProgramTable {
  std::vector<FileValue> values;
  std::vector<std::string> command;
  std::string where;
};

struct ConfigFile {
  std::vector<FileValue> values;  ///< in file order
  std::vector<std::string> program;
  std::string program_where;
  std::vector<ProgramTable> tables;
};

/// Reads a TOML settings file. Keys are long option names; `program` (a string or a list) and `args` (a list) give the
/// program, or each table [[program]] gives one, with `command` (a list) and options of a program. Fails with one line,
/// "FILE:LINE:COLUMN: …", on a syntax error, an unknown key or a wrong type; values are checked later. Blocks on file
/// I/O.
[[nodiscard]] Result<ConfigFile> read_config(const std::string& path);

/// The types of TOML as flags.
namespace types {
constexpr unsigned yes_no = 1, whole = 2, fraction = 4, text = 8, list = 16, table = 32;
}
struct AcceptedTypes {
  Kind kind;
  unsigned types;
  std::string_view wanted;  ///< for messages
};
[[nodiscard]] const AcceptedTypes& accepted_types_of(Kind kind);

/// A list of texts in TOML.
[[nodiscard]] std::string quoted_list(const std::vector<std::string>& items);

/// The content of a file of at most 1 MiB; `what` names its kind in messages. Blocks on file I/O.
[[nodiscard]] Result<std::string> read_text_file(const std::string& path, std::string_view what);

/// Reads the file of --env-file: lines NAME=VALUE, in their order. Fails with one line, "FILE:LINE: …", without the
/// text of that line. Blocks on file I/O. `has_world`: for a program with one.
[[nodiscard]] Result<Variables> read_env_file(const std::string& path, bool has_world,
                                              std::vector<std::string>& warnings);

/// The source of a value; later ones take precedence.
enum class Source {
  standard,
  file,
  table,  ///< a [[program]] of the file
  variable,
  command_line,
  part,  ///< the program's own part of the command line, behind a ':'
};

/// Which options are taken from a source.
enum class Scope { all, job, program };
[[nodiscard]] inline bool is_in(Scope scope, const Option& option) {
  return scope == Scope::all || is_of_program(option) == (scope == Scope::program);
}

struct GivenValue {
  Source source = Source::standard;
  std::string where;   ///< "command line", "variable NAME", "file PATH:LINE:COLUMN"
  std::string prefix;  ///< prefix of messages about the value: "--name=value", "NAME=value", "PATH:LINE:COLUMN: name"
  std::vector<std::string> values;
};

/// The given values of all options, by source. The source with the highest precedence counts; only those that may be
/// repeated with all their values, such as --env, are merged from all.
class Settings {
 public:
  Settings();

  // In order of precedence, the weakest first.
  void add_file(const std::vector<FileValue>& values, Scope scope, Source source = Source::file);
  /// Walks the environment once.
  void add_variables(const Environment& environment, Scope scope);
  void add_command_line(const argv::CommandLine& line, Scope scope, Source source = Source::command_line);

  /// The effective value of `option`; `standard` if it was not given.
  [[nodiscard]] const GivenValue& of(const Option& option) const;
  [[nodiscard]] const GivenValue& of(std::string_view name) const;
  /// Given with a value that is not the default, not off (--quiet=0) and not empty (--rdzv-id=).
  [[nodiscard]] bool is_on(std::string_view name) const;

  /// Of two mutually exclusive options the one with the higher precedence remains; fails if both have the same source.
  [[nodiscard]] Result<void> exclude(std::string_view one, std::string_view other);

  /// Replaces the given option `from` by `to` with `value`. `from` must have been given.
  void move(std::string_view from, std::string_view to, const std::string& value);

  /// All options with a non-empty value, and their source: "--nnodes", "PET_NNODES", "job.toml:3:1".
  [[nodiscard]] cluster::GivenOptions given() const;

  /// Applies every value to its option.
  [[nodiscard]] Result<void> apply_to(ParsedOptions& parsed) const;

 private:
  struct Entry {
    const Option* option;
    std::vector<GivenValue> given;  ///< in order of precedence, highest last
  };
  [[nodiscard]] Entry& entry(const Option& option);
  void add(const Option& option, GivenValue given);

  std::vector<Entry> entries_;
};

/// One of the job's programs with all its settings; the first one's have the job's, too.
struct ParsedProgram {
  ParsedOptions options{};
  Settings settings{};
  std::string origin{};  ///< where the program was given; empty: no program
};

/// `ddrun config show`: a TOML file with the same settings and the origin of each value as a comment.
[[nodiscard]] std::string config_text(const std::vector<ParsedProgram>& programs);
/// `ddrun config show --json`: "value" (null if not set) and "from" for each option.
[[nodiscard]] std::string config_json(const std::vector<ParsedProgram>& programs);

/// The option that a word behind --help names: "--tee", "-t", "tee", or the start of one name only. Null for other
/// words, such as a program.
[[nodiscard]] const Option* option_asked_for(std::string_view word);
/// --help OPTION: its row of --help, its variables, its key in a settings file, its page.
[[nodiscard]] std::string option_help(const Option& option);

/// Resolves mutually exclusive options; before values are applied.
[[nodiscard]] Result<void> resolve_exclusions(Settings& settings);

/// Checks combinations of options: fails on contradictions, warns about options without effect, and translates
/// torchrun's names.
[[nodiscard]] Result<void> check_combinations(ParsedOptions& parsed, Settings& settings,
                                              std::vector<std::string>& warnings);

/// Applies -x to the local workers of a job without --hosts.
void apply_exports(LaunchSpec& spec, const Environment& environment, std::vector<std::string>& warnings);

/// Determines the program's kind: Python script, module or executable.
void choose_program_kind(ParsedOptions& parsed, const Settings& settings, std::vector<std::string>& warnings);

/// Reads the options of a launch; with `has_json` also --json.
[[nodiscard]] Result<argv::CommandLine> read_command_line(std::span<const std::string> arguments,
                                                          bool has_json = false);

struct TypedOption {
  const Option* option;
  std::string value;  ///< "true" for a flag
  std::size_t words;  ///< 2: the value is the next one
};
/// The option of a launch with which `words` begin, if any.
[[nodiscard]] std::optional<TypedOption> option_at(std::span<const std::string> words);

/// Reads the command line of several programs, divided by ':': a part for each, the first perhaps without a program,
/// which is for all. A ':' begins a program where -n with a number or a long option of a program follows; else it is an
/// argument, as all words behind a "--" are.
[[nodiscard]] Result<std::vector<argv::CommandLine>> read_parts(std::span<const std::string> arguments, bool has_json,
                                                                std::vector<std::string>& warnings);

/// Checks several programs together, and gives each a role: --role, else its name. Fails for one that is given twice or
/// is no name, and for --preload in two.
[[nodiscard]] Result<void> name_programs(std::vector<ParsedProgram>& programs);

/// Warns about each DDRUN_* variable that neither an option nor another part of ddrun has, with the nearest name.
void warn_unknown_variables(const Environment& environment, std::vector<std::string>& warnings);

/// Warns about a launcher as the program of several workers, or fails where their jobs would get in each other's way,
/// unless it `is_meant`.
[[nodiscard]] Result<void> check_launcher(const ProgramSpec& program, const LaunchSpec& spec, bool is_meant,
                                          std::vector<std::string>& warnings);

/// Warns about a count of workers only behind the program, and about a program that may be a second host of --hosts.
void warn_misplaced(const ParsedProgram& parsed, std::vector<std::string>& warnings);

/// Drops a "--" directly after the program, as torchrun's parser does; the caller ensures that there was none before
/// it. Kept after an executable that torchrun would not accept.
void drop_separator(ParsedOptions& parsed);

}  // namespace ddrun::cli
