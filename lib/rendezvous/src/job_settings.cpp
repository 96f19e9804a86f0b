#include "job_settings.hpp"

#include <algorithm>
#include <limits>
#include <map>

#include "ddrun/base/text.hpp"

namespace ddrun::rendezvous {

namespace {

// Times larger than this would overflow when they are added to a point in time.
constexpr long long longest_ms = 100LL * 365 * 24 * 3600 * 1000;
constexpr long long most_nodes = 100'000;

class Reader {
 public:
  explicit Reader(const Settings& settings) : values_(settings.begin(), settings.end()) {}

  long long number(const std::string& key, long long low, long long high) {
    const auto found = values_.find(key);
    if (found == values_.end()) {
      complain(concat("the setting ", key, " is missing"));
      return low;
    }
    const auto value = parse_integer(found->second, low, high);
    if (value) return *value;
    complain(concat("the setting ", key, " is '", found->second, "', not a number from ", low, " to ", high));
    return low;
  }
  int count(const std::string& key, long long low, long long high) { return static_cast<int>(number(key, low, high)); }
  Milliseconds time(const std::string& key) { return Milliseconds{number(key, 0, longest_ms)}; }
  std::optional<Milliseconds> time_or_none(const std::string& key) {
    const auto found = values_.find(key);
    if (found == values_.end() || found->second.empty()) return std::nullopt;
    return time(key);
  }

  void complain(std::string what) {
    if (trouble_.empty()) trouble_ = std::move(what);
  }
  [[nodiscard]] const std::string& trouble() const { return trouble_; }

 private:
  std::map<std::string, std::string> values_;
  std::string trouble_;
};

}  // namespace

Result<JobSettings> read_settings(const Settings& settings) {
  Reader reader(settings);
  JobSettings read;
  read.min_nodes = reader.count("min_nodes", 1, most_nodes);
  read.max_nodes = reader.count("max_nodes", 1, most_nodes);
  if (read.min_nodes > read.max_nodes) reader.complain("the setting min_nodes is larger than max_nodes");
  read.restart.max_restarts = reader.count("max_restarts", 0, std::numeric_limits<int>::max() - 1);
  read.restart.backoff = reader.time("restart_backoff_ms");
  read.restart.window = reader.time_or_none("restart_window_ms");
  read.last_call = reader.time("last_call_ms");
  read.join_timeout = reader.time("join_timeout_ms");
  read.exit_skew = reader.time_or_none("exit_skew_ms");
  read.node_max_failures = reader.count("node_max_failures", 0, std::numeric_limits<int>::max());
  read.grace = reader.time("grace_ms");
  if (!reader.trouble().empty()) return fail(Errc::invalid_argument, reader.trouble());
  return read;
}

std::string describe_differences(const Settings& ours, const Settings& theirs) {
  if (ours == theirs) return "";
  const std::map<std::string, std::string> here(ours.begin(), ours.end());
  const std::map<std::string, std::string> there(theirs.begin(), theirs.end());
  const auto shown = [](const std::string& value) { return value.empty() ? std::string("not set") : value; };
  std::vector<std::string> differences;
  for (const auto& [key, value] : here) {
    const auto found = there.find(key);
    const std::string other = found == there.end() ? "" : found->second;
    if (other != value) differences.push_back(concat(key, " is ", shown(other), ", but ", shown(value), " there"));
  }
  for (const auto& [key, value] : there) {
    if (here.count(key) == 0 && !value.empty())
      differences.push_back(concat(key, " is ", value, ", but not set there"));
  }
  return join(differences, "; ");
}

}  // namespace ddrun::rendezvous
