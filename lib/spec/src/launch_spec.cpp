#include "ddrun/spec/launch_spec.hpp"

#include <signal.h>

namespace ddrun {

Streams StreamSelection::of(int local_rank) const {
  if (by_local_rank.empty()) return everyone;
  const auto found = by_local_rank.find(local_rank);
  return found == by_local_rank.end() ? Streams::none : found->second;
}

bool StreamSelection::any() const {
  if (by_local_rank.empty()) return everyone != Streams::none;
  for (const auto& [rank, streams] : by_local_rank) {
    if (streams != Streams::none) return true;
  }
  return false;
}

StopPolicy::StopPolicy() : ending_signals{SIGTERM, SIGINT, SIGHUP, SIGQUIT} {}

}  // namespace ddrun
