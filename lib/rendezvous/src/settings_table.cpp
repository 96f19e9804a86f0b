#include "settings_table.hpp"

#include <limits>

namespace ddrun::rendezvous {

namespace {

using Spec = const LaunchSpec&;
using Value = SettingValue;
using Field = SettingField;

constexpr int most_nodes = 100'000;
constexpr int highest = std::numeric_limits<int>::max();

constexpr Setting table[] = {
    {"min_nodes", "--nnodes", [](Spec s) -> Value { return s.rendezvous.min_nodes; },
     [](JobSettings& j) -> Field { return &j.min_nodes; }, 1, most_nodes},
    {"max_nodes", "--nnodes", [](Spec s) -> Value { return s.rendezvous.max_nodes; },
     [](JobSettings& j) -> Field { return &j.max_nodes; }, 1, most_nodes},
    {"max_restarts", "--max-restarts", [](Spec s) -> Value { return s.restart.max_restarts; },
     [](JobSettings& j) -> Field { return &j.restart.max_restarts; }, 0, highest - 1},
    {"restart_backoff_ms", "--restart-backoff", [](Spec s) -> Value { return s.restart.backoff; },
     [](JobSettings& j) -> Field { return &j.restart.backoff; }},
    {"restart_window_ms", "--restart-window", [](Spec s) -> Value { return s.restart.window; },
     [](JobSettings& j) -> Field { return &j.restart.window; }},
    {"last_call_ms", "--last-call", [](Spec s) -> Value { return s.rendezvous.last_call; },
     [](JobSettings& j) -> Field { return &j.last_call; }},
    {"join_timeout_ms", "--join-timeout", [](Spec s) -> Value { return s.rendezvous.join_timeout; },
     [](JobSettings& j) -> Field { return &j.join_timeout; }},
    {"exit_skew_ms", "--exit-skew", [](Spec s) -> Value { return s.exit_skew; },
     [](JobSettings& j) -> Field { return &j.exit_skew; }},
    {"node_max_failures", "--node-max-failures", [](Spec s) -> Value { return s.rendezvous.node_max_failures; },
     [](JobSettings& j) -> Field { return &j.node_max_failures; }, 0, highest},
    {"grace_ms", "--shutdown-timeout", [](Spec s) -> Value { return s.stop.grace; },
     [](JobSettings& j) -> Field { return &j.grace; }},
};

}  // namespace

std::span<const Setting> settings_table() { return table; }

}  // namespace ddrun::rendezvous
