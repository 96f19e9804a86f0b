#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/argv/argv.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::cli {

/// NAME and value, in order.
using Variables = std::vector<std::pair<std::string, std::string>>;

/// The result of all options: a LaunchSpec and values that are not part of it.
struct ParsedOptions {
  LaunchSpec spec;      ///< all but its programs
  ProgramSpec program;  ///< with this command line's options of a program
  bool module = false;
  bool no_python = false;
  bool run_path = false;
  int verbose = 0;
  int quiet = 0;
  // Accepted from torchrun's command lines and checked; without effect, or translated later.
  std::string start_method = "exec";
  double monitor_interval = 0.1;
  std::string logs_specs = "default";
  bool use_env = false;
  std::string numa_binding;
  std::string env_detect = "auto";  ///< one of cluster::detect_schemes
  std::string ci = "auto";
  std::vector<std::string> env_files;
  Variables file_variables;                ///< of all env_files, in order
  std::vector<std::string> file_warnings;  ///< of all env_files
};

// The option table, used by the parser, variables, the settings file, --help, completions and `config show`. Tests
// compare the manual page and docs/options.md with it.

/// The kind of a value: determines the TOML types and the completion.
enum class Kind {
  flag,            ///< no value; 0 or 1 in variables
  flag_or_choice,  ///< a flag that may have a value behind '='
  count,           ///< a flag that may be repeated
  integer,         ///< whole number
  number,          ///< number with a fraction
  duration,        ///< parse_duration()
  size,            ///< parse_size()
  text,            ///< anything
  choice,          ///< one of `choices`
  file,            ///< path of a file
  files,           ///< the same, repeatable
  directory,       ///< path of a directory
  choice_or_int,   ///< whole number or one of `choices`
  streams,         ///< torchrun's 0..3, or RANK:0..3,…
  numbers,         ///< list of numbers and ranges
  names,           ///< comma list
  pairs,           ///< KEY=VALUE,KEY=VALUE
  assignments,     ///< NAME=VALUE, repeatable
  action,          ///< ends parsing: --help, --version
};

/// Whether all values of a source count, and those of weaker sources too; of --report only the strongest source's.
[[nodiscard]] constexpr bool is_repeatable(Kind kind) { return kind == Kind::assignments || kind == Kind::files; }

struct Option {
  std::string_view name{};     ///< long name without leading dashes: "log-dir"
  std::string_view shorts{};   ///< letters: "r" for -r
  std::string_view metavar{};  ///< name of the value in --help; empty: a flag
  Kind kind = Kind::flag;
  bool pet = false;  ///< also read from PET_<NAME>, as by torchrun
  std::string_view help{};
  /// Parses one value; the error lists what is allowed. Null for options that are not settings: --config, --help.
  Result<void> (*set)(ParsedOptions&, std::string_view) = nullptr;
  /// The current value in the form that `set` accepts; empty: not set. More than one only for Kind::assignments.
  std::vector<std::string> (*show)(const ParsedOptions&) = nullptr;
  std::string_view choices{};         ///< separated by blanks
  std::string_view other_variable{};  ///< another variable, after DDRUN_ and PET_

  [[nodiscard]] bool takes_value() const {
    return kind != Kind::flag && kind != Kind::flag_or_choice && kind != Kind::count && kind != Kind::action;
  }
  [[nodiscard]] bool is_setting() const { return set != nullptr; }
};

/// The option for the command line parser.
[[nodiscard]] argv::Option as_argument(const Option& option);

/// The options under one heading of --help.
struct OptionGroup {
  std::string_view title;
  std::string_view page;  ///< of docs/
  std::span<const Option> options;
};

[[nodiscard]] std::span<const OptionGroup> option_groups();

/// The options of all groups, in order.
[[nodiscard]] std::span<const Option* const> all_options();

/// By long name with '-' or '_'; null if there is none.
[[nodiscard]] const Option* find_option(std::string_view long_name);

using argv::with_dashes;
/// Whether `word` is one of `words`, which are separated by blanks.
[[nodiscard]] bool has_word(std::string_view words, std::string_view word);
/// Whether each program of a job may have its own value.
[[nodiscard]] bool is_of_program(const Option& option);
/// The variables of `option`, in order of precedence.
[[nodiscard]] std::vector<std::string> variables_of(const Option& option);

/// An option of mpirun, srun or another launcher that ddrun lacks, and its replacement.
struct ForeignOption {
  std::string_view names;      ///< separated by blanks, without leading dashes; a single letter is a short option
  std::string_view launchers;  ///< "mpirun", "mpirun and srun"
  /// "in ddrun: ...", or "not needed: ..."
  std::string_view hint;
};

[[nodiscard]] std::span<const ForeignOption> foreign_options();

/// As argv::Grammar::explain.
[[nodiscard]] argv::Explanation explain_foreign_option(std::string_view name, std::string_view value);

}  // namespace ddrun::cli
