#pragma once

#include <span>
#include <string>
#include <vector>

#include "ddrun/base/result.hpp"
#include "option_table.hpp"

namespace ddrun::cli {

struct OptionValues {
  const Option* option;
  std::vector<std::string> values;  ///< scalars: the last one; counts: how often; flags: "true" or what was given
};

/// A command line cut where the program begins. What comes after is the program's and stays as it was typed.
struct CommandLine {
  std::vector<OptionValues> options;  ///< each once
  std::vector<std::string> program;   ///< name and arguments; empty if there is none
  bool separated = false;             ///< "--" stood before the program
  const Option* action = nullptr;     ///< --help or --version was met; nothing behind it was looked at
};

/// Fails on an unknown option (naming the nearest one), a value that is missing or one too many.
[[nodiscard]] Result<CommandLine> read_command_line(std::span<const std::string> arguments);

}  // namespace ddrun::cli
