#include "failover_invariants.hpp"
#include "member_views.hpp"

#include <algorithm>
#include <utility>

#include "codec.hpp"
#include "ddrun/base/text.hpp"
#include "simulation_invariants.hpp"

namespace ddrun::test {

using namespace ddrun::rendezvous;
using std::chrono::seconds;

namespace {

/// For the next leader after a lease has expired; connecting to a dead machine is tried for 5 s.
constexpr seconds time_to_find{8};
/// A heartbeat interval, and time to kill.
constexpr std::chrono::milliseconds time_to_notice{1'500};

/// Agents get the recorded verdict; the record has less of the cause.
bool same_end(const VerdictMessage& sent, const VerdictMessage& recorded) {
  return sent.kind == recorded.kind && sent.exit_code == recorded.exit_code && sent.signal == recorded.signal &&
         sent.rank == recorded.rank && sent.restarts == recorded.restarts;
}

}  // namespace

// ---- coordinators

void FailoverInvariants::receives(const SimulatedServer& server, LinkId link, const FromAgent& message) {
  if (std::holds_alternative<Leave>(message)) servers_[server.number()].leaving.insert(link);
}

void FailoverInvariants::on_join(const SimulatedServer& server, const Join& join) {
  OfServer& of = servers_[server.number()];
  const bool has_recovered = server.coordinator().job().round != 0;
  if (join.claim.node_count == 0 || has_recovered) return;
  of.claims.emplace(join.claim.term, join.claim.round);
  of.gathers_since.reset();  // from now on it waits for the members of its round
}

void FailoverInvariants::on_send(const SimulatedServer& server, LinkId /*link*/, const FromCoordinator& message) {
  const bool recorded = engine_.state().verdict.has_value();
  if (std::holds_alternative<Open>(message) || std::holds_alternative<Start>(message)) {
    require(!recorded, "a round begins, and the verdict of the job is recorded");
    require(server.holds_lease(), "a round begins without the lease");
  }
  const auto* refused = std::get_if<Refused>(&message);
  const bool is_lost = refused != nullptr && refused->why.find(" was lost: ") != std::string::npos;
  require(!is_lost || !scenario_.faults.empty(), "an agent is lost that is well: ", is_lost ? refused->why : "");
  if (const auto* start = std::get_if<Start>(&message)) {
    const auto [of_term, first_of_term] = terms_.try_emplace(start->term, server.number());
    require(of_term->second == server.number(), "two coordinators start rounds in term ", start->term);
    require(start->term >= last_term_, "term ", start->term, " starts a round after term ", last_term_);
    require(start->term > last_term_ || start->round >= last_round_, "round ", start->round, " after ", last_round_);
    if (start->term > last_term_ || start->round > last_round_) ++rounds_;
    last_term_ = start->term;
    last_round_ = start->round;
    const auto place = std::pair(start->term, start->round);
    started_at_.try_emplace(place, timeline_.now());
    const auto [count, first] = restarts_.try_emplace(place, start->ranks.restart_count);
    require(count->second == start->ranks.restart_count, "two restart counts in one round");
    require(start->ranks.restart_count <= scenario_.max_restarts, "too many restarts");
    require(start->ranks.node_count >= scenario_.min_nodes && start->ranks.node_count <= scenario_.max_nodes,
            start->ranks.node_count, " nodes in a round");
  } else if (const auto* verdict = std::get_if<VerdictMessage>(&message)) {
    require(recorded, "a verdict is told before it is recorded");
    const auto record = parse_verdict(*engine_.state().verdict);
    require(record && same_end(*verdict, *record), "another verdict is told than the recorded one");
  }
}

void FailoverInvariants::after_step(const SimulatedServer& server, bool quiet) {
  const Coordinator& coordinator = server.coordinator();
  OfServer& of = servers_[server.number()];
  if (coordinator.done() || coordinator.job().verdict) {
    of.gathers_since.reset();
    return;
  }
  if (quiet) return check_gathering(of);
  const auto members = member_views(coordinator);
  const bool in_round =
      std::any_of(members.begin(), members.end(), [](const auto& member) { return member.node_rank >= 0; });
  const auto available = std::count_if(members.begin(), members.end(),
                                       [&](const auto& member) { return of.leaving.count(member.link) == 0; });
  const bool gathers = !in_round && !server.suspended() && available >= scenario_.min_nodes;
  if (!gathers) of.gathers_since.reset();
  else if (!of.gathers_since) of.gathers_since = timeline_.now();
  require(members.empty() || coordinator.next_deadline().has_value(), "members wait for nothing");
  check_gathering(of);
}

void FailoverInvariants::check_gathering(const OfServer& of) const {
  const auto now = timeline_.now();
  // A suspended machine can do nothing.
  const auto since = of.gathers_since ? std::max(*of.gathers_since, std::min(last_fault_, now)) : now;
  require(now - since <= scenario_.max_gathering(), "enough members wait, and no round begins");
}

// ---- machines

void FailoverInvariants::on_lead(const SimulatedMember& node,
                                 const std::vector<std::shared_ptr<SimulatedMember>>& all) const {
  for (const auto& other : all) {
    require(other->index() == node.index() || !other->is_leader(), node.host(), " and ", other->host(),
            " lead at once");
  }
}

void FailoverInvariants::check_term(const SimulatedMember& node, Term term) const {
  const auto last = last_start_term_.find(node.index());
  require(last == last_start_term_.end() || term >= last->second, node.host(), " obeys term ", term, " after ",
          last == last_start_term_.end() ? 0 : last->second);
}

void FailoverInvariants::on_start(const SimulatedMember& node, const Start& start, bool with_coordinator) {
  last_start_term_[node.index()] = start.term;
  auto& [round, restarts] = last_[node.index()];
  require(start.round > round, node.host(), " starts round ", start.round, " after round ", round);
  require(start.ranks.restart_count >= restarts, node.host(), ": restart count ", start.ranks.restart_count, " after ",
          restarts);
  round = start.round;
  restarts = start.ranks.restart_count;
  const Place place{start.term, start.round};
  // START may have been unread for long, which ddrun cannot know.
  const auto suspended = suspended_until_.find(node.machine());
  const bool waited_suspended = suspended != suspended_until_.end() && timeline_.now() - suspended->second < seconds(1);
  // Or it was on its way, right after WELCOME, for longer than the heartbeat limit.
  const bool long_ago = timeline_.now() - started_at_.at(place) > heartbeat_bound;
  const bool waited_on_its_way = long_ago && timeline_.now() - node.welcomed_at() < seconds(1);
  const bool late = waited_suspended || waited_on_its_way;
  if (late && (place < last_begun_ || (long_ago && place == last_begun_))) {
    running_[node.index()] = {place, with_coordinator, std::nullopt, true, node.host()};
    return;
  }
  require(place >= last_begun_, "round ", start.round, " of term ", start.term, " starts on ", node.host(),
          " after round ", last_begun_.second, " of term ", last_begun_.first);
  last_begun_ = std::max(last_begun_, place);
  if (running_in_.size() > (running_in_.count(place) != 0 ? 1U : 0U)) check_overlap(node, place);
  running_[node.index()] = {place, with_coordinator, std::nullopt, false, node.host()};
  ++running_in_[place];
}

/// Workers of another round still run somewhere.
void FailoverInvariants::check_overlap(const SimulatedMember& node, Place place) {
  const OfServer& of = servers_[terms_.at(place.first)];
  for (auto& [index, running] : running_) {
    if (running.was_suspended || running.place == place) continue;
    // No member of that round came in time, and the engine has elected another leader: a coordinator without the lease,
    // with healthy members, beyond a network partition. Terms distinguish the rounds.
    if (of.claims.count(running.place) == 0 && running.place.first < place.first) continue;
    // The former coordinator, whose lease had expired, detects the loss of its members up to an interval after they
    // have given it up.
    if (running.with_coordinator) {
      if (!running.ends_by) running.ends_by = timeline_.now() + time_to_notice;
      continue;
    }
    require(false, "workers of round ", place.second, " of term ", place.first, " start on ", node.host(),
            " while those of round ", running.place.second, " of term ", running.place.first, " run on ", running.host);
  }
}

void FailoverInvariants::remove_running(const Running& running) {
  if (running.was_suspended) return;
  const auto count = running_in_.find(running.place);
  if (--count->second == 0) running_in_.erase(count);
}

void FailoverInvariants::on_workers_end(const SimulatedMember& node) {
  const auto found = running_.find(node.index());
  const Running running = found->second;
  running_.erase(found);
  remove_running(running);
  require(running.was_suspended || !running.ends_by || timeline_.now() <= *running.ends_by, "workers of round ",
          running.place.second, " of term ", running.place.first, " run on with their coordinator on ", running.host);
}

std::size_t FailoverInvariants::running_last_round() const {
  const auto found = running_in_.find(last_begun_);
  return found == running_in_.end() ? 0 : static_cast<std::size_t>(found->second);
}

void FailoverInvariants::on_suspended(const SimulatedMember& node, Clock::time_point until, bool alone) {
  auto& last = suspended_until_[node.machine()];
  last = std::max(last, until);
  if (alone) return;
  const auto found = running_.find(node.index());
  if (found == running_.end()) return;
  remove_running(found->second);
  found->second.was_suspended = true;
}

void FailoverInvariants::note_fault(std::size_t machine, Clock::time_point until) {
  auto& last = faulty_until_[machine];
  last = std::max(last, until);
}

void FailoverInvariants::on_coordinator_lost(const SimulatedMember& node, const SimulatedMember* coordinator) {
  if (coordinator == nullptr || !coordinator->is_alive() || coordinator->is_stopped()) return;
  // After a recent fault the machine may not have sent anything yet.
  for (const std::size_t machine : {node.machine(), coordinator->machine()}) {
    const auto fault = faulty_until_.find(machine);
    if (fault != faulty_until_.end() && timeline_.now() - fault->second < seconds(4)) return;
  }
  require(false, node.host(), " takes a coordinator for lost that is well");
}

void FailoverInvariants::on_end(const SimulatedMember& node) const {
  if (node.outcome() == SimulatedMember::Outcome::coordinator_lost) {
    // A search that began after the last fault succeeds.
    const bool well = scenario_.lost_requests == 0 && scenario_.late_requests == 0;
    require(!well || node.searched_since() < last_fault_ + seconds(1), node.host(), " has found no coordinator");
    require(!well || timeline_.now() - last_fault_ < scenario_.ttl + time_to_find, node.host(),
            " has found no coordinator, but all was well");
  }
  if (!node.verdict()) return;
  require(engine_.state().verdict.has_value(), node.host(), " hears a verdict that is not recorded");
  const auto record = parse_verdict(*engine_.state().verdict);
  require(record && same_end(*node.verdict(), *record), node.host(), " ends otherwise than the job");
}

}  // namespace ddrun::test
