#pragma once

#include <string>
#include <vector>

#include "ddrun/base/environment.hpp"
#include "settings.hpp"

namespace ddrun::cli {

/// Settles options that exclude each other; before values are applied.
[[nodiscard]] Result<void> settle_exclusions(Settings& settings);

/// Looks at the options together: what contradicts is refused, what has no effect is said in `warnings`, and options
/// that torchrun names otherwise are translated into ddrun's.
[[nodiscard]] Result<void> check_together(Draft& draft, Settings& settings, std::vector<std::string>& warnings);

/// For a job without hosts: what -x sets is set for the workers here, as on hosts.
void export_here(LaunchSpec& spec, const Environment& environment, std::vector<std::string>& warnings);

/// What kind of program it is: a Python script, a module, or something to execute.
void choose_program_kind(Draft& draft, const Settings& settings, std::vector<std::string>& warnings);

/// Takes a "--" directly behind the program away, as torchrun's parser does where none stood before it; the caller has
/// seen to that. Behind a program that torchrun would not have executed it is the program's.
void drop_separator(Draft& draft);

}  // namespace ddrun::cli
