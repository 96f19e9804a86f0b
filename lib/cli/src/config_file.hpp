#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/result.hpp"
#include "option_table.hpp"

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

class Settings;

/// `ddrun config show`: a TOML file that would give the same settings, with the origin of each value as a comment.
[[nodiscard]] std::string config_text(const Draft& draft, const Settings& settings, std::string_view program_origin);
/// `ddrun config show --json`: by option "value", null if it is not set, and "from".
[[nodiscard]] std::string config_json(const Draft& draft, const Settings& settings, std::string_view program_origin);

}  // namespace ddrun::cli
