#include "membership.hpp"

#include <algorithm>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "ddrun/base/text.hpp"

namespace ddrun::rendezvous {

std::string describe(const Member& member) { return concat(member.host, " (", member.peer_address.text(), ")"); }

std::string describe_with_rank(const Member& member) {
  if (!member.in_round()) return describe(member);
  return concat(member.host, " (", member.peer_address.text(), ", node rank ", member.node_rank, ")");
}

std::string machine_of(const Join& join) {
  return join.machine.empty() ? join.host : concat(join.host, " ", join.machine);
}

void Membership::assign_labels() {
  std::unordered_map<std::string_view, std::string_view> names;
  std::unordered_set<std::string_view> ambiguous;
  for (const auto& [link, member] : members_) {
    const auto [known, is_new] = names.emplace(short_host_name(member.name), member.name);
    if (!is_new && known->second != member.name) ambiguous.insert(known->first);
  }
  for (auto& [link, member] : members_) {
    const auto label = short_host_name(member.name);
    member.host = ambiguous.contains(label) ? member.name : label;
  }
}

Member& Membership::add(LinkId link, const Join& join, const LinkAddresses& addresses, bool is_own,
                        Clock::time_point now) {
  Member& member = members_[link];
  member.link = link;
  member.arrival = ++arrivals_;
  member.agent_id = join.agent_id;
  member.name = join.host;
  member.machine = machine_of(join);
  const std::string label(short_host_name(join.host));
  member.host = name_of_label_.emplace(label, join.host).first->second == join.host ? label : join.host;
  member.role = join.role;
  member.peer_address = addresses.peer_address;
  member.local_address = addresses.local_address;
  member.advertised = join.address;
  for (const std::string& text : join.own_addresses) {
    if (member.own_addresses.size() == max_own_addresses) break;
    const auto address = IpAddress::parse(text);
    if (address && !address->is_unspecified()) member.own_addresses.push_back(*address);
  }
  member.wanted_rank = join.node_rank;
  member.local_world_size = static_cast<int>(join.local_world_size);
  member.runs_coordinator = is_own && !own_;
  member.last_heard = now;
  by_agent_[member.agent_id] = link;
  if (member.wanted_rank >= 0) by_wanted_rank_[member.wanted_rank] = link;
  if (member.runs_coordinator) own_ = link;
  return member;
}

void Membership::release_identity(const Member& member) {
  const auto agent = by_agent_.find(member.agent_id);
  if (agent != by_agent_.end() && agent->second == member.link) by_agent_.erase(agent);
  const auto rank = by_wanted_rank_.find(member.wanted_rank);
  if (rank != by_wanted_rank_.end() && rank->second == member.link) by_wanted_rank_.erase(rank);
}

void Membership::remove(LinkId link) {
  const auto found = members_.find(link);
  if (found == members_.end()) return;
  release_identity(found->second);
  if (own_ == link) own_.reset();
  if (!found->second.available()) --unavailable_;
  members_.erase(found);
}

Member* Membership::find(LinkId link) {
  const auto found = members_.find(link);
  return found == members_.end() ? nullptr : &found->second;
}

const Member* Membership::find(LinkId link) const {
  const auto found = members_.find(link);
  return found == members_.end() ? nullptr : &found->second;
}

Member* Membership::conflicting_member(const Join& join) {
  if (const auto same = by_agent_.find(join.agent_id); same != by_agent_.end()) return find(same->second);
  if (join.node_rank < 0) return nullptr;
  const auto same = by_wanted_rank_.find(join.node_rank);
  return same == by_wanted_rank_.end() ? nullptr : find(same->second);
}

void Membership::set_leaving(Member& member, Leave leave) {
  if (member.available()) ++unavailable_;
  member.leaving = std::move(leave);
  release_identity(member);
}

void Membership::set_excluded(Member& member) {
  if (member.available()) ++unavailable_;
  member.excluded = true;
}

std::vector<Member*> Membership::available_members() {
  std::vector<Member*> available;
  available.reserve(members_.size());
  for (auto& [link, member] : members_) {
    if (member.available()) available.push_back(&member);
  }
  return available;
}

std::string Membership::names(std::size_t max) const {
  std::vector<const Member*> candidates;
  for (const auto& [link, member] : members_) {
    if (member.available()) candidates.push_back(&member);
  }
  std::sort(candidates.begin(), candidates.end(),
            [](const Member* a, const Member* b) { return a->arrival < b->arrival; });
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(max, candidates.size()); ++i) names.push_back(describe(*candidates[i]));
  if (candidates.size() > max) names.push_back(concat(candidates.size() - max, " more"));
  return join(names, ", ");
}

}  // namespace ddrun::rendezvous
