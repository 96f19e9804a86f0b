#pragma once

#include <span>
#include <string_view>

namespace ddrun::cli {

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
