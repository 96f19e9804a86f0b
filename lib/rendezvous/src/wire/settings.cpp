#include "settings.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <variant>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/rendezvous/hmac.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::rendezvous {

namespace {

using Field = std::variant<int*, Milliseconds*, std::optional<Milliseconds>*>;

/// A setting of JOIN: its key, its option, and its value.
struct Setting {
  const char* key;
  const char* option;  ///< with dashes
  Field (*in)(JobSettings& settings);
  int low = 0;  ///< bounds of a number; times have a common bound
  int high = 0;
  const char* unset = "not set";  ///< shown for an empty value
};

constexpr int max_node_count = 100'000;
constexpr int max_int = std::numeric_limits<int>::max();

/// PROTOCOL.md, section 5.
constexpr Setting table[] = {
    {"min_nodes", "--nnodes", [](JobSettings& j) -> Field { return &j.min_nodes; }, 1, max_node_count},
    {"max_nodes", "--nnodes", [](JobSettings& j) -> Field { return &j.max_nodes; }, 1, max_node_count},
    {"max_restarts", "--max-restarts", [](JobSettings& j) -> Field { return &j.restart.max_restarts; }, 0, max_int - 1},
    {"restart_backoff_ms", "--restart-backoff", [](JobSettings& j) -> Field { return &j.restart.backoff; }},
    {"restart_window_ms", "--restart-window", [](JobSettings& j) -> Field { return &j.restart.window; }},
    {"same_cause", "--same-cause", [](JobSettings& j) -> Field { return &j.restart.same_cause; }, 0, max_int},
    {"last_call_ms", "--last-call", [](JobSettings& j) -> Field { return &j.last_call; }},
    {"join_timeout_ms", "--join-timeout", [](JobSettings& j) -> Field { return &j.join_timeout; }},
    {"exit_skew_ms", "--exit-skew", [](JobSettings& j) -> Field { return &j.exit_skew; }},
    {"node_max_failures", "--node-max-failures", [](JobSettings& j) -> Field { return &j.node_max_failures; }, 0,
     max_int},
    {"fence_ms", "--fence", [](JobSettings& j) -> Field { return &j.fence; }, 0, 0, "auto"},
    {"grace_ms", "--shutdown-timeout", [](JobSettings& j) -> Field { return &j.grace; }},
};

/// Equal on all agents if any of them may lead: others wait for its coordinator by their own settings.
struct LeaseSetting {
  const char* key;
  const char* options;
  Milliseconds (*of)(const LaunchSpec& spec);
};
constexpr LeaseSetting lease_table[] = {
    {"lease_ttl_ms", "--lease-ttl", [](const LaunchSpec& s) { return s.rendezvous.lease_ttl; }},
    {"silence_ms", "--heartbeat-interval times --heartbeat-misses",
     [](const LaunchSpec& s) { return s.rendezvous.heartbeat_interval * s.rendezvous.heartbeat_misses; }},
};

std::string text_of(int number) { return std::to_string(number); }
std::string text_of(Milliseconds duration) { return std::to_string(duration.count()); }
std::string text_of(const std::optional<Milliseconds>& duration) { return duration ? text_of(*duration) : ""; }

// Larger times overflow when added to a time point.
constexpr long long max_ms = 100LL * 365 * 24 * 3600 * 1000;

using Values = std::map<std::string, std::string>;

std::string value_of(const Values& values, const std::string& key) {
  const auto found = values.find(key);
  return found == values.end() ? "" : found->second;
}

/// Parses the settings of a Join; keeps the first error.
class SettingsReader {
 public:
  explicit SettingsReader(const Settings& settings) : values_(settings.begin(), settings.end()) {}

  void read(const Setting& setting, JobSettings& into) {
    setting_ = &setting;
    std::visit([this](auto* field) { read(*field); }, setting.in(into));
  }
  void set_error(std::string what) {
    if (error_.empty()) error_ = std::move(what);
  }
  [[nodiscard]] const std::string& error() const { return error_; }

 private:
  void read(int& field) { field = static_cast<int>(number(setting_->low, setting_->high)); }
  void read(Milliseconds& field) { field = Milliseconds{number(0, max_ms)}; }
  void read(std::optional<Milliseconds>& field) {
    field.reset();
    if (!value_of(values_, setting_->key).empty()) read(field.emplace());
  }
  long long number(long long low, long long high) {
    const auto found = values_.find(setting_->key);
    if (found == values_.end()) {
      set_error(concat("the setting ", setting_->key, " is missing"));
      return low;
    }
    const auto value = parse_integer(found->second, low, high);
    if (value) return *value;
    set_error(
        concat("the setting ", setting_->key, " is '", found->second, "', not a number from ", low, " to ", high));
    return low;
  }

  Values values_;
  const Setting* setting_ = nullptr;
  std::string error_;
};

/// As the user writes it: times with a unit, node counts as for --nnodes. Invalid text is kept.
std::string display_value(const Values& values, const Setting& setting) {
  const std::string text = value_of(values, setting.key);
  if (setting.option == std::string_view("--nnodes")) {
    const std::string min = value_of(values, "min_nodes");
    const std::string max = value_of(values, "max_nodes");
    return min == max ? min : concat(min, ':', max);
  }
  if (text.empty()) return setting.unset;
  JobSettings unused;
  const auto milliseconds = parse_integer(text, 0, max_ms);
  const bool is_time = !std::holds_alternative<int*>(setting.in(unused));
  // Exact, so that different values look different.
  return is_time && milliseconds ? duration_text(Milliseconds(*milliseconds)) + " s" : text;
}

constexpr const char* program_key = "program";
/// Only where it is on, so that a ddrun that does not know it refuses.
constexpr const char* mpi_key = "mpi";

/// Of the command line, which tells jobs without an id apart. Empty for a job with an id, whose agents may run
/// different programs.
std::string program_fingerprint(const LaunchSpec& spec) {
  if (spec.rendezvous.id != RendezvousSpec().id) return "";
  std::string argv_text;
  for (const ProgramSpec& program : spec.programs) {
    // An argument may be any text; no program's name is empty.
    if (spec.has_several_programs()) argv_text += concat('\0', program.args.size(), '\0');
    argv_text += program.name;
    for (const std::string& word : program.args) argv_text += concat('\0', word);
  }
  // Half of it tells texts apart without showing them.
  const Digest digest = HmacKey("ddrun program").sign({argv_text});
  return in_hex(std::as_bytes(std::span(digest)).first(digest.size() / 2));
}

}  // namespace

JobSettings job_settings(const LaunchSpec& spec) {
  const RendezvousSpec& rendezvous = spec.rendezvous;
  return {.min_nodes = rendezvous.min_nodes,
          .max_nodes = rendezvous.max_nodes,
          .restart = spec.restart,
          .last_call = rendezvous.last_call,
          .join_timeout = rendezvous.join_timeout,
          .exit_skew = spec.exit_skew,
          .node_max_failures = rendezvous.node_max_failures,
          .grace = spec.stop.grace,
          .fence = rendezvous.fence};
}

Settings join_settings(const LaunchSpec& spec, const std::string& mpi) {
  Settings settings{{program_key, program_fingerprint(spec)}};
  if (!mpi.empty()) settings.emplace_back(mpi_key, mpi);
  JobSettings values = job_settings(spec);
  for (const Setting& setting : table) {
    settings.emplace_back(setting.key,
                          std::visit([](const auto* value) { return text_of(*value); }, setting.in(values)));
  }
  if (spec.rendezvous.has_lease()) {
    for (const LeaseSetting& setting : lease_table) settings.emplace_back(setting.key, text_of(setting.of(spec)));
  }
  std::sort(settings.begin(), settings.end());
  return settings;
}

Result<JobSettings> read_settings(const Settings& settings) {
  SettingsReader reader(settings);
  JobSettings read;
  for (const Setting& setting : table) reader.read(setting, read);
  if (read.min_nodes > read.max_nodes) reader.set_error("the setting min_nodes is larger than max_nodes");
  if (!reader.error().empty()) return fail(Errc::invalid_argument, reader.error());
  return read;
}

bool same_program(const Settings& ours, const Settings& theirs) {
  return value_of(Values(ours.begin(), ours.end()), program_key) ==
         value_of(Values(theirs.begin(), theirs.end()), program_key);
}

std::string describe_differences(const Settings& ours, const Settings& theirs, Audience audience) {
  if (ours == theirs) return "";
  Values our_values(ours.begin(), ours.end());
  Values their_values(theirs.begin(), theirs.end());
  std::vector<std::string> differences;
  const auto note = [&](std::string_view name, const std::string& other, const std::string& value) {
    const bool there = audience == Audience::there;
    std::string difference =
        concat(name, " is ", other, there ? ", but " : " there, ", value, there ? " there" : " here");
    // Both node counts come from one option.
    if (differences.empty() || differences.back() != difference) differences.push_back(std::move(difference));
  };
  for (const Setting& setting : table) {
    if (value_of(our_values, setting.key) == value_of(their_values, setting.key)) continue;
    note(setting.option, display_value(their_values, setting), display_value(our_values, setting));
  }
  for (const LeaseSetting& setting : lease_table) {
    const auto lease_value = [&](const Values& values) {
      const auto time = parse_integer(value_of(values, setting.key), 0, max_ms);
      return time ? duration_text(Milliseconds(*time)) + " s" : std::string("not set");
    };
    if (lease_value(our_values) != lease_value(their_values)) {
      note(setting.options, lease_value(their_values), lease_value(our_values));
    }
  }
  for (Values* values : {&our_values, &their_values}) {
    for (const Setting& setting : table) values->erase(setting.key);
    for (const LeaseSetting& setting : lease_table) values->erase(setting.key);
  }
  const auto mpi = [](const Values& values) { return values.count(mpi_key) == 0 ? "none" : value_of(values, mpi_key); };
  if (mpi(our_values) != mpi(their_values)) note("--mpi", mpi(their_values), mpi(our_values));
  // The program: same_program().
  for (Values* values : {&our_values, &their_values})
    std::erase_if(*values, [](const auto& one) { return one.first == program_key || one.first == mpi_key; });
  // Settings of another version: shown by key.
  const auto plain = [](const std::string& text) { return text.empty() ? std::string("not set") : text; };
  for (const auto& [key, value] : our_values) {
    if (const std::string other = value_of(their_values, key); other != value) note(key, plain(other), plain(value));
  }
  for (const auto& [key, value] : their_values) {
    if (our_values.count(key) == 0 && !value.empty()) note(key, value, "not set");
  }
  return join(differences, "; ");
}

}  // namespace ddrun::rendezvous
