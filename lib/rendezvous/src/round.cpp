#include "coordinator_state.hpp"
#include "ddrun/rendezvous/assign_ranks.hpp"
#include "ddrun/rendezvous/event_text.hpp"
#include "meeting_address.hpp"
#include "node_ranks.hpp"

namespace ddrun::rendezvous {

namespace {

constexpr Milliseconds time_to_open{30'000};

}  // namespace

void Coordinator::State::gather() {
  if (phase_ != Phase::gathering) return;
  const JobSettings& job = memory_.meaning;
  if (!join_until_) {
    gathering_since_ = pause_until_.value_or(now);
    join_until_ = gathering_since_ + job.join_timeout;
  }
  const int here = members_.available();
  if (here < job.min_nodes) {
    last_call_.reset();
    last_call_over_ = false;
  }
  if (pause_until_ || here < job.min_nodes) return;
  const bool last_call_over = memory_.started || last_call_over_ || job.last_call.count() == 0;
  if (here >= job.max_nodes || last_call_over) begin_round();
  else if (!last_call_) last_call_ = now + job.last_call;
}

std::vector<Seat*> Coordinator::State::candidates() {
  std::vector<Seat*> available;
  available.reserve(members_.size());
  for (auto& [link, seat] : members_.all()) {
    if (seat.available()) available.push_back(&seat);
  }
  return available;
}

void Coordinator::State::begin_round() {
  const std::vector<Seat*> available = candidates();
  const auto most = static_cast<std::size_t>(memory_.meaning.max_nodes);
  const std::vector<Seat*> members = order_members(choose_members(available, most));
  const std::vector<const Seat*> seen(members.begin(), members.end());
  ++memory_.round;
  phase_ = Phase::opening;
  last_call_.reset();
  any_succeeded_ = false;
  round_links_.clear();
  int world_size = 0;
  std::vector<std::string> hosts;
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    Seat& seat = *members[rank];
    seat.node_rank = static_cast<int>(rank);
    seat.in_round = true;
    seat.told = seat.succeeded = seat.stopped = seat.told_spare = false;
    round_links_.push_back(seat.link);
    world_size += seat.local_world_size;
    hosts.push_back(seat.host);
  }
  round_size_ = members.size();
  address_ = address_of_node_rank_0(seen, options_.own_addresses);
  event(event_text::round(memory_.round, memory_.budget.used(), world_size, address_, hosts));
  opened_until_ = now + time_to_open;
  members.front()->told = true;
  send(members.front()->link, Open{memory_.round, address_, 0, addresses_of(seen, options_.own_addresses)});
  if (available.size() == members.size()) return;
  for (Seat* seat : available) {
    if (!seat->in_round && !seat->told_spare) tell_waiting(*seat, true, "a place in the job");
  }
}

void Coordinator::State::start_round(std::uint16_t port) {
  std::vector<Member> members;
  members.reserve(round_links_.size());
  for (const LinkId link : round_links_) {
    const Seat& seat = *members_.find(link);
    members.push_back(Member{seat.local_world_size, seat.role});
  }
  std::vector<RankAssignment> ranks = assign_ranks(members);
  opened_until_.reset();
  join_until_.reset();
  phase_ = Phase::running;
  memory_.started = true;
  unfinished_ = unsucceeded_ = round_size_;
  for (std::size_t rank = 0; rank < round_links_.size(); ++rank) {
    Seat& seat = *members_.find(round_links_[rank]);
    seat.told = true;
    seat.kept_rank = seat.node_rank;
    ranks[rank].restart_count = memory_.budget.used();
    ranks[rank].max_restarts = memory_.meaning.restart.max_restarts;
    ranks[rank].master_addr = address_;
    ranks[rank].master_port = port;
    send(round_links_[rank], Start{memory_.round, std::move(ranks[rank])});
  }
  event(event_text::started(memory_.round, memory_.budget.used(), static_cast<int>(round_size_)));
}

}  // namespace ddrun::rendezvous
