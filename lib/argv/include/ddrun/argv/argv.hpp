#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/result.hpp"

// Command lines of all programs, read by a table of options. CLI11 does it; only src/argv.cpp knows that.
namespace ddrun::argv {

struct Option {
  std::string_view name;       ///< long name without dashes, words joined by '-'
  std::string_view shorts{};   ///< letters: "r" for -r
  std::string_view metavar{};  ///< what messages call the value; empty: the option takes none
  std::string_view help{};     ///< what it does; empty: not shown
  bool action = false;         ///< ends the reading: --help, --version
};

enum class Positionals {
  anywhere,  ///< options and words in any order; what follows "--" are words
  program,   ///< the first word is a program: it ends the options, and what follows it is left as it is
};

struct Grammar {
  std::span<const Option> options;
  Positionals positionals = Positionals::anywhere;
  std::string_view help;  ///< the command that shows the options: "ddrun --help"
  /// The end of a sentence about an option of other programs, by its name without dashes: " (of mpirun); in ddrun:
  /// --hosts=HOST"; empty if there is none. May be null.
  std::string (*explain)(std::string_view name) = nullptr;
  std::string_view alias{};  ///< one more spelling of the short option of its first letter: "np" for -n
};

struct OptionValues {
  const Option* option;
  /// In the order of the command line. Of an option without a value "true", before a program also what is behind "=".
  std::vector<std::string> values;
};

struct CommandLine {
  std::vector<OptionValues> options;  ///< each once, in the order of the table
  std::vector<std::string> positionals;
  bool has_separator = false;      ///< "--" stood before the words, or among them
  const Option* action = nullptr;  ///< was met; nothing behind it was looked at

  [[nodiscard]] bool has(std::string_view name) const { return !values(name).empty(); }
  /// The last one given, empty if there is none.
  [[nodiscard]] std::string last(std::string_view name) const { return has(name) ? values(name).back() : ""; }
  [[nodiscard]] const std::vector<std::string>& values(std::string_view name) const;

  /// Sets `to` to what `parse` makes of the last value; leaves it as it is if there is none. An error's message begins
  /// with the option.
  template <class To, class Parse>
  [[nodiscard]] Result<void> read(std::string_view name, To& to, Parse parse) const {
    if (!has(name)) return {};
    auto value = parse(last(name));
    if (!value) return fail(value.error().code, "--" + std::string(name) + ": " + value.error().message);
    to = static_cast<To>(*value);
    return {};
  }
};

/// "--nproc-per-node", "nproc_per_node" -> "nproc-per-node"; only '_' is replaced.
[[nodiscard]] std::string with_dashes(std::string_view name);

/// Reads `arguments`, which begin behind the program's own name. Words of a long name may be joined by '_' too. What
/// looks like an option is a value only behind "=". Fails with `invalid_argument` on an unknown option (naming the
/// nearest one), a value that is missing or one too many.
[[nodiscard]] Result<CommandLine> read(const Grammar& grammar, std::span<const std::string> arguments);

/// The row of an option in a help: its names, and `what` it does, in lines of 79 columns at most.
[[nodiscard]] std::string describe(const Option& option, std::string_view what);
/// The rows of all that are shown.
[[nodiscard]] std::string describe(std::span<const Option> options);

}  // namespace ddrun::argv
