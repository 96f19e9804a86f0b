#include "membership.hpp"

#include <algorithm>

#include "ddrun/base/text.hpp"

namespace ddrun::rendezvous {

std::string describe(const Seat& seat) { return concat(seat.host, " (", seat.peer_address.text(), ")"); }

std::string describe_with_rank(const Seat& seat) {
  if (!seat.in_round) return describe(seat);
  return concat(seat.host, " (", seat.peer_address.text(), ", node rank ", seat.node_rank, ")");
}

Seat& Membership::add(LinkId link, const Join& join, const LinkFacts& facts, Clock::time_point now) {
  Seat& seat = seats_[link];
  seat.link = link;
  seat.arrival = ++arrivals_;
  seat.agent_id = join.agent_id;
  seat.host = join.host;
  seat.role = join.role;
  seat.peer_address = facts.peer_address;
  seat.local_address = facts.local_address;
  seat.advertised = join.address;
  for (const std::string& text : join.own_addresses) {
    if (seat.own_addresses.size() == most_own_addresses) break;
    const auto address = IpAddress::parse(text);
    if (address && !address->is_unspecified()) seat.own_addresses.push_back(*address);
  }
  seat.wanted_rank = join.node_rank;
  seat.local_world_size = static_cast<int>(join.local_world_size);
  seat.runs_coordinator = join.runs_coordinator && !own_;
  seat.last_heard = now;
  by_agent_[seat.agent_id] = link;
  if (seat.wanted_rank >= 0) by_wanted_rank_[seat.wanted_rank] = link;
  if (seat.runs_coordinator) own_ = link;
  return seat;
}

void Membership::drop_claims(const Seat& seat) {
  const auto agent = by_agent_.find(seat.agent_id);
  if (agent != by_agent_.end() && agent->second == seat.link) by_agent_.erase(agent);
  const auto rank = by_wanted_rank_.find(seat.wanted_rank);
  if (rank != by_wanted_rank_.end() && rank->second == seat.link) by_wanted_rank_.erase(rank);
}

void Membership::remove(LinkId link) {
  const auto found = seats_.find(link);
  if (found == seats_.end()) return;
  drop_claims(found->second);
  if (own_ == link) own_.reset();
  if (!found->second.available()) --unavailable_;
  seats_.erase(found);
}

Seat* Membership::find(LinkId link) {
  const auto found = seats_.find(link);
  return found == seats_.end() ? nullptr : &found->second;
}

const Seat* Membership::find(LinkId link) const {
  const auto found = seats_.find(link);
  return found == seats_.end() ? nullptr : &found->second;
}

Seat* Membership::rival(const Join& join) {
  if (const auto same = by_agent_.find(join.agent_id); same != by_agent_.end()) return find(same->second);
  if (join.node_rank < 0) return nullptr;
  const auto same = by_wanted_rank_.find(join.node_rank);
  return same == by_wanted_rank_.end() ? nullptr : find(same->second);
}

void Membership::set_leaving(Seat& seat, int signal) {
  if (seat.available()) ++unavailable_;
  seat.leaving = true;
  seat.leave_signal = signal;
  drop_claims(seat);
}

void Membership::set_benched(Seat& seat) {
  if (seat.available()) ++unavailable_;
  seat.benched = true;
}

std::string Membership::names(std::size_t most) const {
  std::vector<const Seat*> here;
  for (const auto& [link, seat] : seats_) {
    if (seat.available()) here.push_back(&seat);
  }
  std::sort(here.begin(), here.end(), [](const Seat* a, const Seat* b) { return a->arrival < b->arrival; });
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(most, here.size()); ++i) names.push_back(describe(*here[i]));
  if (here.size() > most) names.push_back(concat(here.size() - most, " more"));
  return join(names, ", ");
}

}  // namespace ddrun::rendezvous
