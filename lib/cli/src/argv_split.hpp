#pragma once

#include <span>
#include <string>
#include <vector>

#include "ddrun/base/result.hpp"
#include "option_table.hpp"

namespace ddrun::cli {

/// A command line cut where the program begins. What comes after is the program's and stays as it was typed.
struct Argv {
  std::vector<std::string> ours;     ///< options as CLI11 cannot misread them: words joined by '-'
  std::vector<const Option*> used;   ///< those that occur in `ours`, each once
  std::vector<std::string> program;  ///< name and arguments; empty if there is none
  bool separated = false;            ///< "--" stood before the program
  const Option* action = nullptr;    ///< --help or --version was met; nothing behind it was looked at
};

/// Fails on an unknown option (naming the nearest one), a value that is missing or one too many.
[[nodiscard]] Result<Argv> split_argv(std::span<const std::string> arguments);

}  // namespace ddrun::cli
