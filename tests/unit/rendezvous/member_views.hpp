#pragma once

#include <string>
#include <vector>

#include "coordinator.hpp"

namespace ddrun::test {

struct MemberView {
  rendezvous::LinkId link = 0;
  std::string host;
  int node_rank = -1;  ///< -1: not in the current round
  bool spare = false;
};

inline std::vector<MemberView> member_views(const rendezvous::Coordinator& coordinator) {
  std::vector<MemberView> views;
  for (const auto& [link, member] : coordinator.job().members.all()) {
    views.push_back({link, member.host, member.node().node_rank, !member.in_round() && member.notified_spare});
  }
  return views;
}

}  // namespace ddrun::test
