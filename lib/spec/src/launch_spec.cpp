#include "ddrun/spec/launch_spec.hpp"

#include <signal.h>

namespace ddrun {

Streams StreamSelection::of(int local_rank) const {
  if (by_local_rank.empty()) return all_ranks;
  const auto found = by_local_rank.find(local_rank);
  return found == by_local_rank.end() ? Streams::none : found->second;
}

bool StreamSelection::any() const {
  if (by_local_rank.empty()) return all_ranks != Streams::none;
  for (const auto& [rank, streams] : by_local_rank) {
    if (streams != Streams::none) return true;
  }
  return false;
}

StopPolicy::StopPolicy() : ending_signals{SIGTERM, SIGINT, SIGHUP, SIGQUIT} {}

std::string nproc_text(const NprocSpec& nproc) {
  switch (nproc.kind) {
    case NprocSpec::Kind::automatic: return "auto";
    case NprocSpec::Kind::cpu: return "cpu";
    case NprocSpec::Kind::gpu: return "gpu";
    case NprocSpec::Kind::count: break;
  }
  return std::to_string(nproc.count);
}

std::string count_option(const NprocSpec& nproc) {
  const std::string text = nproc_text(nproc);
  return text == "1" ? std::string() : "-n " + text + " ";
}

}  // namespace ddrun
