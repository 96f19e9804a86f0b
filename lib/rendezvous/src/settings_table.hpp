#pragma once

#include <optional>
#include <span>
#include <variant>

#include "ddrun/base/duration.hpp"
#include "ddrun/spec/launch_spec.hpp"
#include "job_settings.hpp"

namespace ddrun::rendezvous {

using SettingValue = std::variant<int, Milliseconds, std::optional<Milliseconds>>;
using SettingField = std::variant<int*, Milliseconds*, std::optional<Milliseconds>*>;

/// One setting of JOIN: what it is called there and by users, where an agent has it, and where the coordinator puts it.
struct Setting {
  const char* key;
  const char* option;  ///< with its dashes
  SettingValue (*of)(const LaunchSpec& spec);
  SettingField (*in)(JobSettings& settings);
  int low = 0;  ///< bounds of a number; for times there is one bound for all
  int high = 0;
};

/// All of them: PROTOCOL.md, section 5.
[[nodiscard]] std::span<const Setting> settings_table();

}  // namespace ddrun::rendezvous
