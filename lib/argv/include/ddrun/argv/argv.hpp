#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/result.hpp"

// The command line parser of all programs, driven by a table of options. Built on CLI11, which only src/argv.cpp
// includes.
namespace ddrun::argv {

struct Option {
  std::string_view name;       ///< long name without leading dashes: "log-dir"
  std::string_view shorts{};   ///< letters: "r" for -r
  std::string_view metavar{};  ///< name of the value in messages; empty: a flag
  std::string_view help{};     ///< help text; empty: not shown
  bool action = false;         ///< ends parsing: --help, --version
  /// A start of the name, with '-' or '_' throughout, is enough if no other option that may be shortened has it.
  bool may_be_shortened = false;
};

enum class Positionals {
  anywhere,  ///< options and positionals in any order; all after "--" are positionals
  program,   ///< the first positional is a program: it ends the options, its arguments are not parsed
};

/// What to write instead of an option of another launcher.
struct Explanation {
  std::string text;  ///< " (of mpirun); in ddrun: --hosts=HOST"; empty: not known
  int values = 0;    ///< of the option, if they are separate arguments
};

struct Grammar {
  std::span<const Option> options;
  Positionals positionals = Positionals::anywhere;
  std::string_view help;  ///< the command that lists the options: "ddrun --help"
  /// By the name of an unknown option without dashes, and its values separated by blanks. May be null; else all unknown
  /// options are reported, and not only the first one.
  Explanation (*explain)(std::string_view name, std::string_view value) = nullptr;
  std::string_view alias{};  ///< alternative spelling of a short option: "np" for -n
};

struct OptionValues {
  const Option* option;
  /// In command line order. "true" for a flag; with Positionals::program also the text after "=".
  std::vector<std::string> values;
};

struct CommandLine {
  std::vector<OptionValues> options;     ///< each option once, in table order
  std::vector<std::string> positionals;  ///< with `action`: all words behind it
  bool has_separator = false;            ///< there was a "--"
  const Option* action = nullptr;        ///< the action option that ended parsing
  bool is_short = false;                 ///< `action` was typed as a letter: -h

  [[nodiscard]] bool has(std::string_view name) const { return !values(name).empty(); }
  /// The last value; empty if there is none.
  [[nodiscard]] std::string last(std::string_view name) const { return has(name) ? values(name).back() : ""; }
  [[nodiscard]] const std::vector<std::string>& values(std::string_view name) const;

  /// Parses the last value into `to`; `to` is unchanged without a value. The error message begins with the option.
  template <class To, class Parse>
  [[nodiscard]] Result<void> read(std::string_view name, To& to, Parse parse) const {
    if (!has(name)) return {};
    auto value = parse(last(name));
    if (!value) return fail(value.error().code, "--" + std::string(name) + ": " + value.error().message);
    to = static_cast<To>(*value);
    return {};
  }
};

/// Replaces '_' by '-': "nproc_per_node" -> "nproc-per-node".
[[nodiscard]] std::string with_dashes(std::string_view name);

/// Parses `arguments` (without argv[0]). Long names may use '_' instead of '-'. A value that looks like an option needs
/// "=". Fails with `invalid_argument` on unknown options (naming the nearest ones; one on a line), a missing value, or
/// a value for a flag.
[[nodiscard]] Result<CommandLine> read(const Grammar& grammar, std::span<const std::string> arguments);

/// The row of an option in a help text: its names and `what`, wrapped at 79 columns.
[[nodiscard]] std::string describe(const Option& option, std::string_view what);
/// The rows of all options with a help text.
[[nodiscard]] std::string describe(std::span<const Option> options);

}  // namespace ddrun::argv
