#include <iterator>
#include <utility>

#include "coordinator_state.hpp"
#include "ddrun/base/text.hpp"

// Two claims of one node rank, or one agent id twice: the member that is there is asked whether it lives.

namespace ddrun::rendezvous {

namespace {

std::string refusal(const Join& join, const Seat& rival) {
  if (join.agent_id == rival.agent_id) return concat("an agent of this id is there already: ", describe(rival));
  return concat("node rank ", join.node_rank, " is taken by ", describe(rival));
}

}  // namespace

void Coordinator::State::dispute(LinkId link, const Join& join, const LinkFacts& facts, Seat& rival) {
  if (rival.probe == 0) rival.probe = ping(rival.link);
  claims_.push_back(Claim{link, join, facts, rival.link, now, now + heartbeat_.bound()});
}

void Coordinator::State::settle_by_pong(Seat& rival, std::uint32_t number) {
  // Numbers wrap around after some years.
  if (rival.probe == 0 || static_cast<std::int32_t>(number - rival.probe) < 0) return;
  rival.probe = 0;
  for (auto claim = claims_.begin(); claim != claims_.end();) {
    if (claim->rival == rival.link) {
      refuse(claim->link, RefusalKind::for_good, refusal(claim->join, rival));
      claim = claims_.erase(claim);
    } else {
      ++claim;
    }
  }
}

void Coordinator::State::settle_by_time() {
  while (!claims_.empty() && claims_.front().deadline <= now) {
    const LinkId rival = claims_.front().rival;
    Seat* seat = members_.find(rival);
    if (seat != nullptr && seat->last_heard > claims_.front().asked) {
      seat->probe = 0;
      refuse(claims_.front().link, RefusalKind::for_good, refusal(claims_.front().join, *seat));
      claims_.pop_front();
    } else if (seat != nullptr) {
      lose(*seat, "it is silent, and another agent came in its place", seat->last_heard, false);
    } else {
      settle_by_loss(rival);
    }
  }
}

void Coordinator::State::settle_by_loss(LinkId rival) {
  std::list<Claim> ready;
  for (auto claim = claims_.begin(); claim != claims_.end();) {
    const auto next = std::next(claim);
    if (claim->rival == rival) ready.splice(ready.end(), claims_, claim);
    claim = next;
  }
  for (const Claim& claim : ready) join(claim.link, claim.join, claim.facts);
}

bool Coordinator::State::drop_claim(LinkId link) {
  for (auto claim = claims_.begin(); claim != claims_.end(); ++claim) {
    if (claim->link != link) continue;
    claims_.erase(claim);
    return true;
  }
  return false;
}

}  // namespace ddrun::rendezvous
