#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/environment.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/cluster/complete.hpp"
#include "option_table.hpp"

// What was given on the command line, in a file of settings and by variables; put together; checked.
namespace ddrun::cli {

struct FileValue {
  const Option* option;
  std::vector<std::string> values;  ///< as the option would take them on the command line
  std::string key;                  ///< as written
  std::string where;                ///< "FILE:LINE:COLUMN"
};

struct ConfigFile {
  std::vector<FileValue> values;  ///< in the order of the file
  std::vector<std::string> program;
  std::string program_where;
};

/// Reads a TOML file of settings. Keys are long option names; `program` (a text or a list) and `args` (a list) name
/// what is run. Fails with one line, "FILE:LINE:COLUMN: …", on bad syntax, an unknown key or a wrong type; values
/// themselves are not judged here. Blocks as reading a file does.
[[nodiscard]] Result<ConfigFile> read_config(const std::string& path);

/// Where a value came from; a later one is stronger.
enum class Source { standard, file, variable, command_line };

struct Given {
  Source source = Source::standard;
  std::string where;   ///< "command line", "variable NAME", "file PATH:LINE:COLUMN"
  std::string prefix;  ///< for messages about the value: "--name=value", "NAME=value", "PATH:LINE:COLUMN: name"
  std::vector<std::string> values;
};

/// What was given for every option, from the strongest source that gave it. Only --env is gathered from all.
class Settings {
 public:
  Settings();

  void add_file(const ConfigFile& file);
  /// Walks the environment once.
  void add_variables(const Environment& environment);
  void add_command_line(const argv::CommandLine& line);

  /// What counts for `option`; its source is `standard` if it was not given.
  [[nodiscard]] const Given& of(const Option& option) const;
  [[nodiscard]] const Given& of(std::string_view name) const;
  /// Given, neither as its default nor switched off (--quiet=0) nor as nothing (--rdzv-id=).
  [[nodiscard]] bool is_on(std::string_view name) const;

  /// Of two options that exclude each other the one from the stronger source stays; both from one: a failure.
  [[nodiscard]] Result<void> exclude(std::string_view one, std::string_view other);

  /// What was given for `from` counts as `value` for `to`. `from` must have been given.
  void move(std::string_view from, std::string_view to, const std::string& value);

  /// All options that were given as more than nothing, and where, in a word or two: "--nnodes", "PET_NNODES",
  /// "job.toml:3:1".
  [[nodiscard]] cluster::Given given() const;

  /// Gives every value to its option.
  [[nodiscard]] Result<void> apply_to(ParsedOptions& parsed) const;

 private:
  struct Entry {
    const Option* option;
    std::vector<Given> given;  ///< the strongest last
  };
  [[nodiscard]] Entry& entry(const Option& option);
  void add(const Option& option, Given given);

  std::vector<Entry> entries_;
};

/// `ddrun config show`: a TOML file that would give the same settings, with the origin of each value as a comment.
[[nodiscard]] std::string config_text(const ParsedOptions& parsed, const Settings& settings,
                                      std::string_view program_origin);
/// `ddrun config show --json`: by option "value", null if it is not set, and "from".
[[nodiscard]] std::string config_json(const ParsedOptions& parsed, const Settings& settings,
                                      std::string_view program_origin);

/// Settles options that exclude each other; before values are applied.
[[nodiscard]] Result<void> resolve_exclusions(Settings& settings);

/// Looks at the options together: what contradicts is refused, what has no effect is said in `warnings`, and options
/// that torchrun names otherwise are translated into ddrun's.
[[nodiscard]] Result<void> check_combinations(ParsedOptions& parsed, Settings& settings,
                                              std::vector<std::string>& warnings);

/// For a job without hosts: what -x sets is set for the workers here, as on hosts.
void apply_exports(LaunchSpec& spec, const Environment& environment, std::vector<std::string>& warnings);

/// What kind of program it is: a Python script, a module, or something to execute.
void choose_program_kind(ParsedOptions& parsed, const Settings& settings, std::vector<std::string>& warnings);

/// Takes a "--" directly behind the program away, as torchrun's parser does where none stood before it; the caller has
/// seen to that. Behind a program that torchrun would not have executed it is the program's.
void drop_separator(ParsedOptions& parsed);

}  // namespace ddrun::cli
