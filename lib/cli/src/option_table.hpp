#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/argv/argv.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::cli {

enum class ColorMode { automatic, always, never };

/// A LaunchSpec in the making, with what options say beside it.
struct ParsedOptions {
  LaunchSpec spec;
  bool module = false;
  bool no_python = false;
  bool run_path = false;
  int verbose = 0;
  int quiet = 0;
  ColorMode color = ColorMode::automatic;
  // Taken from torchrun's command lines, checked, and of no further effect or translated later.
  std::string start_method = "spawn";
  double monitor_interval = 0.1;
  std::string logs_specs = "default";
  bool use_env = false;
  std::string numa_binding;
  std::string env_detect = "auto";  ///< one of cluster::detect_schemes
  std::string ci = "auto";
};

// The one table of options. Parsing, variables, the config file, --help, completions and `config show` all read it, so
// they cannot disagree; tests hold the manual page and docs/options.md against it.

/// What a value looks like: decides which TOML types fit and how it is completed.
enum class Kind {
  flag,           ///< no value; 0 or 1 in variables
  count,          ///< a flag that may be repeated
  integer,        ///< whole number
  number,         ///< number with a fraction
  duration,       ///< parse_duration()
  size,           ///< parse_size()
  text,           ///< anything
  choice,         ///< one of `choices`
  file,           ///< path of a file
  directory,      ///< path of a directory
  choice_or_int,  ///< whole number or a word of `choices`
  streams,        ///< torchrun's 0..3, or RANK:0..3,…
  numbers,        ///< list of numbers and ranges
  names,          ///< comma list
  pairs,          ///< KEY=VALUE,KEY=VALUE
  assignments,    ///< NAME=VALUE, repeatable
  action,         ///< ends parsing: --help, --version
};

struct Option {
  std::string_view name{};     ///< long name without dashes, words joined by '-'
  std::string_view shorts{};   ///< letters: "r" for -r
  std::string_view metavar{};  ///< what --help calls the value; empty if there is none
  Kind kind = Kind::flag;
  bool pet = false;  ///< read from PET_<NAME>, as torchrun does
  std::string_view help{};
  /// Takes one value, or says what is allowed. Null for --config, --help and their like, which are no settings.
  Result<void> (*set)(ParsedOptions&, std::string_view) = nullptr;
  /// The value as `set` would take it; empty: not set. Several only for Kind::assignments.
  std::vector<std::string> (*show)(const ParsedOptions&) = nullptr;
  std::string_view choices{};         ///< words, separated by blanks
  std::string_view other_variable{};  ///< a further variable, after DDRUN_ and PET_

  [[nodiscard]] bool takes_value() const { return kind != Kind::flag && kind != Kind::count && kind != Kind::action; }
  [[nodiscard]] bool is_setting() const { return set != nullptr; }
};

/// As the command line sees it.
[[nodiscard]] argv::Option as_argument(const Option& option);

/// What stands under one heading of the help.
struct OptionGroup {
  std::string_view title;
  std::span<const Option> options;
};

[[nodiscard]] std::span<const OptionGroup> option_groups();

/// All options: those of each group behind one another.
[[nodiscard]] std::span<const Option* const> all_options();

/// By long name, with '-' or '_' between words; null if there is none.
[[nodiscard]] const Option* find_option(std::string_view long_name);

using argv::with_dashes;
/// Variables that set `option`, the strongest first.
[[nodiscard]] std::vector<std::string> variables_of(const Option& option);

/// An option of mpirun, srun and other launchers that ddrun has not, and what does the same here.
struct ForeignOption {
  std::string_view names;      ///< separated by blanks, without dashes in front; of one letter: as `-N`
  std::string_view launchers;  ///< whose it is: "mpirun", "mpirun and srun"
  /// The end of a sentence: "in ddrun: ...", or "not needed: ..."
  std::string_view hint;
};

[[nodiscard]] std::span<const ForeignOption> foreign_options();

/// `name` without dashes in front, with '-' or '_' between words; null if none is known by it.
[[nodiscard]] const ForeignOption* find_foreign_option(std::string_view name);

}  // namespace ddrun::cli
