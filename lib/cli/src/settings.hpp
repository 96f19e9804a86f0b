#pragma once

#include <string>
#include <vector>

#include "command_line.hpp"
#include "config_file.hpp"
#include "ddrun/base/environment.hpp"
#include "ddrun/cluster/complete.hpp"

namespace ddrun::cli {

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
  void add_command_line(const std::vector<OptionValues>& values);

  /// What counts for `option`; its source is `standard` if nobody gave it.
  [[nodiscard]] const Given& of(const Option& option) const;
  [[nodiscard]] const Given& of(std::string_view name) const;
  /// Given, neither as its default nor switched off (--quiet=0) nor as nothing (--rdzv-id=).
  [[nodiscard]] bool is_on(std::string_view name) const;

  /// Of two options that exclude each other the one from the stronger source stays; both from one: a failure.
  [[nodiscard]] Result<void> exclude(std::string_view one, std::string_view other);

  /// What was given for `from` counts as `value` for `to`. `from` must have been given.
  void move(std::string_view from, std::string_view to, const std::string& value);

  /// All options that somebody gave as more than nothing, and where, in a word or two: "--nnodes", "PET_NNODES",
  /// "job.toml:3:1".
  [[nodiscard]] cluster::Given given() const;

  /// Gives every value to its option.
  [[nodiscard]] Result<void> apply_to(Draft& draft) const;

 private:
  struct Entry {
    const Option* option;
    std::vector<Given> given;  ///< the strongest last
  };
  [[nodiscard]] Entry& entry(const Option& option);
  void add(const Option& option, Given given);

  std::vector<Entry> entries_;
};

}  // namespace ddrun::cli
