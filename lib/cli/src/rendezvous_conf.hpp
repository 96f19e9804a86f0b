#pragma once

#include <string>
#include <vector>

#include "ddrun/base/result.hpp"
#include "ddrun/spec/launch_spec.hpp"
#include "settings.hpp"

namespace ddrun::cli {

/// torchrun's keys of --rdzv-conf, given their meaning unless an option of ddrun's own says otherwise. Fails with
/// `invalid_argument` for a value that is none; a key that is not known gives a warning.
[[nodiscard]] Result<void> apply_rendezvous_conf(RendezvousSpec& rendezvous, const Settings& settings,
                                                 std::vector<std::string>& warnings);

}  // namespace ddrun::cli
