#include "job_memory.hpp"

namespace ddrun::rendezvous {

void JobMemory::adopt(const Join& first, const JobSettings& settings_meaning) {
  job_id = first.job_id;
  version = first.version;
  settings = first.settings;
  meaning = settings_meaning;
  budget = RestartBudget(meaning.restart);
}

bool JobMemory::excluded(const std::string& host) const {
  if (meaning.node_max_failures == 0) return false;
  const auto found = failures_of_host.find(host);
  return found != failures_of_host.end() && found->second >= meaning.node_max_failures;
}

}  // namespace ddrun::rendezvous
