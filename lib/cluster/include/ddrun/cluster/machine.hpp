#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ddrun/base/environment.hpp"

namespace ddrun::cluster {

// What detection looks at. All of it comes in as arguments, so that a test can be any machine.

/// The text of a file; nothing if it cannot be read.
using ReadFile = std::function<std::optional<std::string>(const std::string& path)>;

struct Machine {
  std::string host_name;               ///< as gethostname() says
  std::vector<std::string> addresses;  ///< of its interfaces, as text
  std::int64_t pid = 0;                ///< of the ddrun that was started; 0: unknown
};

/// This one. Does not block: no name is looked up.
[[nodiscard]] Machine this_machine();

/// A ReadFile for real files, at most 16 MiB of each.
[[nodiscard]] std::optional<std::string> read_text_file(const std::string& path);

}  // namespace ddrun::cluster
