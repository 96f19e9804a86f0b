#pragma once

#include "ddrun/rendezvous/messages.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::rendezvous {

/// What an agent says in Join that has to be the same on all of them (PROTOCOL.md, section 5), sorted by key.
[[nodiscard]] Settings join_settings(const LaunchSpec& spec);

}  // namespace ddrun::rendezvous
