#pragma once

#include <map>
#include <string>
#include <vector>

#include "ddrun/base/text.hpp"
#include "ddrun/cluster/complete.hpp"
#include "ddrun/cluster/detect.hpp"
#include "ddrun/test/catch.hpp"

namespace ddrun::cluster::test {

/// A simulated machine with variables and files.
struct Scenario {
  std::vector<std::string> variables;  ///< "NAME=value"
  Machine machine{"host", {}, 4711};
  std::map<std::string, std::string> files{};
  std::string how = "auto";
};

inline Result<Detected> run_detect(const Scenario& scenario) {
  std::vector<const char*> entries;
  for (const std::string& variable : scenario.variables) entries.push_back(variable.c_str());
  entries.push_back(nullptr);
  const Environment variables(entries.data());
  const ReadFile read = [&](const std::string& path) -> std::optional<std::string> {
    const auto found = scenario.files.find(path);
    if (found == scenario.files.end()) return std::nullopt;
    return found->second;
  };
  auto detected = detect(variables, read, scenario.machine, scenario.how);
  if (scenario.how == "auto" && (!detected || !detected->scheme.empty())) CHECK(has_scheduler_variables(variables));
  return detected;
}

inline Detected detect_in(const Scenario& scenario) {
  auto detected = run_detect(scenario);
  if (!detected) {
    INFO(detected.error().message);
    REQUIRE(detected);
  }
  return std::move(*detected);
}

inline std::string refusal_of(const Scenario& scenario) {
  const auto detected = run_detect(scenario);
  REQUIRE_FALSE(detected);
  return detected.error().message;
}

/// The detected values in one line: "Slurm step: 4 nodes, rank 2, at n1:PORT.., here no, job slurm-1.0, 8 GPUs". Hashed
/// ports are shown as a star.
inline std::string summary(const Detected& found) {
  std::string text = found.scheme;
  if (found.nodes) {
    text += concat("; nodes ", found.nodes->value.min);
    if (found.nodes->value.min != found.nodes->value.max) text += concat(":", found.nodes->value.max);
  }
  if (found.node_rank) text += concat("; rank ", found.node_rank->value);
  if (found.coordinators) {
    const auto& endpoints = found.coordinators->value;
    text += concat("; at ", endpoints.front().host, ":",
                   endpoints.size() > 1 ? std::string("*") : std::to_string(endpoints.front().port));
  }
  if (found.is_host) text += found.is_host->value ? "; here" : "; there";
  if (found.job_id) text += concat("; job ", found.job_id->value);
  if (found.gpus) text += concat("; GPUs ", found.gpus->value);
  return text;
}

inline std::string summary_in(const Scenario& scenario) { return summary(detect_in(scenario)); }

/// "" if it is used; "<none>" if there is no such evidence.
inline std::string override_of(const std::vector<Evidence>& all, const std::string& what) {
  for (const Evidence& one : all) {
    if (one.what == what) return one.overridden_by;
  }
  return "<none>";
}

}  // namespace ddrun::cluster::test
