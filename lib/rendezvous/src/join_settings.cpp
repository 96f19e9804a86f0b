#include "ddrun/rendezvous/join_settings.hpp"

#include <algorithm>
#include <optional>

namespace ddrun::rendezvous {

namespace {

std::string text_of(Milliseconds duration) { return std::to_string(duration.count()); }
std::string text_of(const std::optional<Milliseconds>& duration) { return duration ? text_of(*duration) : ""; }

}  // namespace

Settings join_settings(const LaunchSpec& spec) {
  const RendezvousSpec& meeting = spec.rendezvous;
  Settings settings = {
      {"min_nodes", std::to_string(meeting.min_nodes)},
      {"max_nodes", std::to_string(meeting.max_nodes)},
      {"max_restarts", std::to_string(spec.restart.max_restarts)},
      {"restart_backoff_ms", text_of(spec.restart.backoff)},
      {"restart_window_ms", text_of(spec.restart.window)},
      {"last_call_ms", text_of(meeting.last_call)},
      {"join_timeout_ms", text_of(meeting.join_timeout)},
      {"exit_skew_ms", text_of(spec.exit_skew)},
      {"node_max_failures", std::to_string(meeting.node_max_failures)},
      {"grace_ms", text_of(spec.stop.grace)},
  };
  std::sort(settings.begin(), settings.end());
  return settings;
}

}  // namespace ddrun::rendezvous
