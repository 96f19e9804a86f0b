#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/result.hpp"

namespace ddrun::cli {

/// An option of a command that has few of them and no settings.
struct PlainOption {
  std::string_view name;  ///< "--port"
  bool takes_value;
};

struct PlainWords {
  std::vector<std::string> words;                               ///< what belongs to no option
  std::map<std::string_view, std::vector<std::string>> values;  ///< by name; an empty text for each flag
  [[nodiscard]] bool has(std::string_view name) const { return values.contains(name); }
  /// The last one given, empty if there is none.
  [[nodiscard]] std::string last(std::string_view name) const {
    const auto it = values.find(name);
    return it == values.end() ? std::string() : it->second.back();
  }
};

/// Options, in both spellings, and words in any order; what follows "--" are words. Fails with `invalid_argument` in
/// CLI11's words.
[[nodiscard]] Result<PlainWords> read_plain(std::span<const PlainOption> options, std::span<const std::string> words);

}  // namespace ddrun::cli
