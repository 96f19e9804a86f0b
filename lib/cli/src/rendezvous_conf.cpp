#include "rendezvous_conf.hpp"

#include <algorithm>
#include <array>

#include "ddrun/base/text.hpp"
#include "values.hpp"

namespace ddrun::cli {

namespace {

/// The last six say something about torchrun's own store or barrier, which ddrun does not have.
constexpr std::array<const char*, 13> known_keys{
    "timeout",      "join_timeout", "last_call_timeout", "keep_alive_interval", "keep_alive_max_attempt",
    "is_host",      "rank",         "close_timeout",     "heartbeat",           "heartbeat_timeout",
    "read_timeout", "store_type",   "use_libuv"};

Result<void> wrong(std::string_view key, std::string_view text, const Error& error) {
  return fail(Errc::invalid_argument, concat("--rdzv-conf: ", key, "=", text, ": ", error.message));
}

}  // namespace

Result<void> apply_rendezvous_conf(RendezvousSpec& rendezvous, const Settings& settings,
                                   std::vector<std::string>& warnings) {
  const bool is_static = rendezvous.backend == "static";
  const auto given = [&](std::string_view option) { return settings.is_on(option); };
  const auto time = [&](const std::string& key, std::string_view option, Milliseconds& to) -> Result<void> {
    const auto found = rendezvous.conf.find(key);
    if (found == rendezvous.conf.end() || given(option)) return {};
    const auto parsed = parse_positive_time(found->second);
    if (!parsed) return wrong(key, found->second, parsed.error());
    to = *parsed;
    return {};
  };
  // As with torchrun: a static rendezvous has `timeout`, a dynamic one has `join_timeout`.
  if (auto set = time(is_static ? "timeout" : "join_timeout", "join-timeout", rendezvous.join_timeout); !set)
    return set;
  if (auto set = time("last_call_timeout", "last-call", rendezvous.last_call); !set) return set;
  if (auto set = time("keep_alive_interval", "heartbeat-interval", rendezvous.heartbeat_interval); !set) return set;
  if (const auto found = rendezvous.conf.find("keep_alive_max_attempt");
      found != rendezvous.conf.end() && !given("heartbeat-misses")) {
    const auto parsed = parse_int(found->second, 1, 10'000);
    if (!parsed) return wrong(found->first, found->second, parsed.error());
    rendezvous.heartbeat_misses = *parsed;
  }
  if (const auto found = rendezvous.conf.find("rank");
      found != rendezvous.conf.end() && is_static && !rendezvous.node_rank) {
    const auto parsed = parse_int(found->second, 0, 1'000'000);
    if (!parsed) return wrong(found->first, found->second, parsed.error());
    rendezvous.node_rank = *parsed;
  }
  if (const auto found = rendezvous.conf.find("is_host"); found != rendezvous.conf.end() && !rendezvous.is_host) {
    const auto parsed = parse_bool(found->second);
    if (!parsed) return wrong(found->first, found->second, parsed.error());
    rendezvous.is_host = *parsed;
  }
  if (settings.of("rdzv-conf").source != Source::command_line) return {};
  const std::vector<std::string> known(known_keys.begin(), known_keys.end());
  for (const auto& [key, value] : rendezvous.conf) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string near = nearest(key, known);
    warnings.push_back(concat("--rdzv-conf: ddrun knows no key '", key, "'",
                              near.empty() ? std::string() : concat("; did you mean '", near, "'?")));
  }
  return {};
}

}  // namespace ddrun::cli
