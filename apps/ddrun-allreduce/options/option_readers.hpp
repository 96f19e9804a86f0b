#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/text.hpp"
#include "options/option_table.hpp"

namespace ddrun::allreduce {

// What reads the text of an option into a value that outlives the reading.

[[nodiscard]] OptionTable::Read text_into(std::string& to);
/// Bytes, "64K" too.
[[nodiscard]] OptionTable::Read size_into(std::uint64_t& to, std::uint64_t least = 0);
[[nodiscard]] OptionTable::Read size_into(std::optional<std::uint64_t>& to);
[[nodiscard]] OptionTable::Read number_into(int& to, int low, int high);
/// 0 or 1.
[[nodiscard]] OptionTable::Read switch_into(bool& to);
/// More than nothing; "30" is seconds.
[[nodiscard]] OptionTable::Read duration_into(Milliseconds& to);
[[nodiscard]] OptionTable::Read duration_into(std::optional<Milliseconds>& to);

/// "must be a, b or c, not 'x'".
[[nodiscard]] tl::unexpected<Error> none_of(const std::vector<std::string>& names, const std::string& text);

template <class Value, std::size_t Count>
[[nodiscard]] std::vector<std::string> names_of(const std::array<Value, Count>& known) {
  std::vector<std::string> names;
  for (const Value value : known) names.emplace_back(name_of(value));
  return names;
}

/// One of those that have a name_of(); `named` finds it.
template <class Value, std::size_t Count, class Named>
[[nodiscard]] OptionTable::Read name_into(Value& to, const std::array<Value, Count>& known, Named named) {
  return [&to, &known, named](const std::string& text) -> Result<void> {
    const std::optional<Value> one = named(text);
    if (!one) return none_of(names_of(known), text);
    to = *one;
    return {};
  };
}

/// Names with commas between them, each once, or "all".
template <class Value, std::size_t Count, class Named>
[[nodiscard]] OptionTable::Read names_into(std::vector<Value>& to, const std::array<Value, Count>& known, Named named) {
  return [&to, &known, named](const std::string& text) -> Result<void> {
    to.clear();
    for (const std::string& word : split(text, ',')) {
      if (word == "all") {
        to.assign(known.begin(), known.end());
        continue;
      }
      const std::optional<Value> one = named(word);
      if (!one) {
        std::vector<std::string> names = names_of(known);
        names.emplace_back("all");
        return none_of(names, word);
      }
      if (std::find(to.begin(), to.end(), *one) == to.end()) to.push_back(*one);
    }
    return {};
  };
}

}  // namespace ddrun::allreduce
