#include "simulation_invariants.hpp"
#include "member_views.hpp"

#include <algorithm>
#include <utility>

#include "ddrun/base/text.hpp"

namespace ddrun::test {

using namespace ddrun::rendezvous;

namespace {

constexpr std::chrono::milliseconds heartbeat_time{3'500};

}  // namespace

void Invariants::joins(LinkId link, const Join& join, Clock::time_point now) {
  joined_[link] = join;
  last_heard_[link] = now;
  progress_ = true;
}

void Invariants::receives(LinkId link, const FromAgent& message, Clock::time_point now) {
  last_heard_[link] = now;
  survey_.receives(link, message, now);
  using std::holds_alternative;
  const bool is_survey = holds_alternative<Ask>(message) || holds_alternative<Stacks>(message);
  progress_ = progress_ || (!holds_alternative<Pong>(message) && !is_survey);
  const bool running = started_ == coordinator_.job().round && started_ != 0 && stop_sent_.empty();
  if (const auto* failed = std::get_if<Failed>(&message)) {
    if (failed->round == started_ && unstopped_.count(link) != 0) {
      reason_for_restart_ = true;
      if (running && !verdict_) {
        must_stop_ = true;
        first_failure_ = std::pair(joined_.at(link).host, failed->rank);
      }
    }
  } else if (const auto* succeeded = std::get_if<Succeeded>(&message)) {
    if (succeeded->round == started_) succeeded_.insert(link);
  } else if (const auto* stopped = std::get_if<Stopped>(&message)) {
    const auto found = unstopped_.find(link);
    if (found != unstopped_.end() && found->second == stopped->round) {
      unstopped_.erase(found);
      if (stopped->round == started_) stopped_[link] = *stopped;
    }
  } else if (const auto* leave = std::get_if<Leave>(&message)) {
    if (leave->kind == LeaveKind::signalled) {
      signals_.insert(leave->code);
      leaving_.insert(link);
      return;
    }
    aborted_ = true;
    if (leave->kind != LeaveKind::cannot_go_on) return;
    // For the others it may count as a lost node.
    cannot_go_on_.insert(link);
    any_loss_ = true;
    if (starts_.count(link) != 0 && unstopped_.count(link) != 0) reason_for_restart_ = true;
  }
}

void Invariants::disconnected(LinkId link) {
  if (lost_.count(link) == 0 && joined_.count(link) != 0) mark_lost(link);
}

void Invariants::mark_lost(LinkId link) {
  lost_.insert(link);
  any_loss_ = true;
  // A finished member is not missed, unless it had the store.
  const auto start = starts_.find(link);
  const bool had_store = start != starts_.end() && start->second.node_rank == 0;
  if (start != starts_.end() && (unstopped_.count(link) != 0 || had_store)) reason_for_restart_ = true;
  unstopped_.erase(link);
}

void Invariants::sends(const Coordinator::Output& output, Clock::time_point now) {
  const LinkId link = output.link;
  progress_ = progress_ || !output.message || !is_any<Ping, Look, Page>(*output.message);
  if (output.message) survey_.sends(link, *output.message, now);
  if (!output.message) {
    mark_lost(link);
    return;
  }
  if (std::holds_alternative<Welcome>(*output.message)) {
    welcomed_.push_back(link);
  } else if (const auto* open = std::get_if<Open>(&*output.message)) {
    require(unstopped_.empty(), "round ", open->round, " is opened while link ",
            unstopped_.empty() ? 0 : unstopped_.begin()->first, " has not stopped the one before");
    require(open->round > last_round_, "round ", open->round, " is opened after ", last_round_);
    require(lost_.count(link) == 0, "OPEN to a link that is gone");
    unstopped_[link] = open->round;
    stop_sent_.clear();
  } else if (const auto* start = std::get_if<Start>(&*output.message)) {
    if (start->round != started_) {
      before_ = std::exchange(starts_, {});
      first_failure_.reset();
      succeeded_.clear();
      stopped_.clear();
      stop_sent_.clear();
      started_ = start->round;
      reason_for_restart_ = false;
    }
    require(lost_.count(link) == 0, "START to a link that is gone");
    require(starts_.count(link) == 0, "START twice to link ", link);
    for (const auto& [other, round] : unstopped_) {
      require(round == start->round, "round ", start->round, " starts while link ", other, " is in ", round);
    }
    unstopped_[link] = start->round;
    starts_[link] = start->ranks;
    new_starts_ = true;
  } else if (std::holds_alternative<Stop>(*output.message)) {
    stop_sent_.insert(link);
  } else if (const auto* refused = std::get_if<Refused>(&*output.message)) {
    const bool lost = refused->why.find(" was lost: ") != std::string::npos && refused->why.compare(0, 4, "left") != 0;
    require(!lost || faulty_.count(link) != 0 || was_suspended_, "link ", link, " is well, but: ", refused->why);
    if (lost) any_loss_ = true;
    const auto running = starts_.find(link);
    if (refused->why.find("nothing was heard from it") != std::string::npos && running != starts_.end() &&
        unstopped_.count(link) != 0 && unstopped_.at(link) == started_) {
      // It may take an interval longer to give up the coordinator, and then its workers have their grace.
      const auto until = last_heard_.at(link) + heartbeat_time + std::chrono::seconds(1) + scenario_.grace;
      fence_until_ = std::max(fence_until_, until);
    }
  } else if (const auto* verdict = std::get_if<VerdictMessage>(&*output.message)) {
    if (!coordinator_.job().verdict) {  // the job goes on without it
      require(cannot_go_on_.count(link) != 0 && unstopped_.count(link) == 0, "a verdict for link ", link, " alone");
      return;
    }
    require(unstopped_.empty(), "a verdict while workers may still run");
    require(!verdict_ || *verdict_ == *verdict, "two verdicts: ", verdict_ ? verdict_->why : "", " / ", verdict->why);
    verdict_ = *verdict;
  }
}

void Invariants::check_start() {
  new_starts_ = false;
  const int nodes = static_cast<int>(starts_.size());
  require(nodes >= scenario_.min_nodes && nodes <= scenario_.max_nodes, nodes, " nodes in round ", started_);
  std::vector<std::pair<const RankAssignment*, const Join*>> by_rank(starts_.size());
  int world_size = 0;
  std::map<std::string, int> roles;
  for (const auto& [link, ranks] : starts_) {
    require(ranks.node_count == nodes, "node count ", ranks.node_count, " of ", nodes);
    require(ranks.node_rank >= 0 && ranks.node_rank < nodes, "node rank ", ranks.node_rank, " of ", nodes);
    auto& place = by_rank[static_cast<std::size_t>(ranks.node_rank)];
    require(place.first == nullptr, "node rank ", ranks.node_rank, " twice");
    place = {&ranks, &joined_.at(link)};
    world_size += static_cast<int>(joined_.at(link).local_world_size);
    roles[joined_.at(link).role] += static_cast<int>(joined_.at(link).local_world_size);
  }
  int base = 0;
  std::map<std::string, int> role_base;
  for (const auto& [ranks, join] : by_rank) {
    const int local = static_cast<int>(join->local_world_size);
    require(ranks->base_rank == base && ranks->local_world_size == local && ranks->world_size == world_size,
            "ranks of node ", ranks->node_rank, " do not fit");
    require(ranks->role_base_rank == role_base[join->role] && ranks->role_world_size == roles[join->role],
            "role ranks of node ", ranks->node_rank, " do not fit");
    require(ranks->restart_count == coordinator_.job().budget.used(), "restart count ", ranks->restart_count);
    require(!ranks->master_addr.empty() && ranks->master_port != 0, "no meeting place");
    require(ranks->master_addr == by_rank.front().first->master_addr, "two meeting places");
    base += local;
    role_base[join->role] += local;
  }
  for (const auto& [link, ranks] : starts_) {
    const auto kept = before_.find(link);
    if (scenario_.given_ranks || kept == before_.end() || kept->second.node_rank >= nodes) continue;
    require(kept->second.node_rank == ranks.node_rank, "link ", link, " had node rank ", kept->second.node_rank,
            " and now has ", ranks.node_rank);
  }
  for (const auto& view : member_views(coordinator_)) {
    if (view.node_rank >= 0) require(starts_.count(view.link) != 0, "link ", view.link, " got no START");
  }
}

void Invariants::after_step(Clock::time_point now, bool ticked) {
  survey_.after_step(now);
  if (new_starts_) {
    require(now >= fence_until_, "a round starts while workers of a silent node may still run");
    check_start();
    started_at_ = now;
  }
  if (std::exchange(progress_, false)) progress_at_ = now;
  require(!progress_at_ || now - *progress_at_ <= scenario_.max_wait(), "nothing has happened for too long");
  for (const LinkId link : std::exchange(welcomed_, {})) last_heard_[link] = now;
  require(coordinator_.job().round >= last_round_, "the round number went back");
  require(coordinator_.job().budget.used() >= last_restarts_, "the restart count went back");
  if (scenario_.window_s == 0) require(coordinator_.job().budget.used() <= scenario_.max_restarts, "too many restarts");
  require(coordinator_.job().budget.used() <= last_restarts_ + 1, "two restarts at once");
  if (coordinator_.job().budget.used() > last_restarts_) {
    require(reason_for_restart_, "a restart was used up for nothing");
  }
  last_round_ = coordinator_.job().round;
  last_restarts_ = coordinator_.job().budget.used();
  if (must_stop_) {
    must_stop_ = false;
    for (const auto& [link, round] : unstopped_) {
      require(stop_sent_.count(link) != 0, "link ", link, " was not told that a worker has failed");
    }
  }
  const auto members = member_views(coordinator_);
  std::set<int> ranks;
  for (const auto& member : members) {
    require(lost_.count(member.link) == 0, "link ", member.link, " is gone, but a member");
    const bool silent =
        now - last_heard_[member.link] > heartbeat_time && !coordinator_.job().verdict && !was_suspended_;
    require(!silent, "link ", member.link, " has been silent for too long");
    if (member.node_rank >= 0) require(ranks.insert(member.node_rank).second, "node rank ", member.node_rank, " twice");
  }
  if (!members.empty() && !coordinator_.job().verdict) check_places(members, now);
  const auto deadline = coordinator_.next_deadline();
  require(coordinator_.done() || members.empty() || deadline.has_value(), "somebody waits for nothing");
  require(!coordinator_.done() || !deadline, "a deadline after the end");
  if (ticked && deadline) require(*deadline > now, "ticks without end");
  if (coordinator_.job().verdict) {
    require(!verdict_ || *verdict_ == *coordinator_.job().verdict, "another verdict was sent than there is");
    verdict_ = coordinator_.job().verdict;
  } else {
    require(!verdict_, "a verdict was taken back");
  }
}

void Invariants::check_places(const std::vector<MemberView>& members, Clock::time_point now) const {
  int in_round = 0;
  bool waits = false;
  for (const auto& member : members) {
    if (member.node_rank >= 0) ++in_round;
    else waits = waits || leaving_.count(member.link) == 0;
  }
  require(in_round == 0 || !unstopped_.empty(), "a round in which nobody is");
  const bool running = started_ == coordinator_.job().round && stop_sent_.empty() && in_round != 0;
  if (!running || !succeeded_.empty() || scenario_.node_max_failures != 0) return;
  // Newcomers are collected for a while.
  if (now <= started_at_ + scenario_.last_call || was_suspended_) return;
  require(in_round >= scenario_.max_nodes || !waits, "somebody waits, and there is a place");
}

void Invariants::check_verdict() const {
  const VerdictMessage& verdict = *verdict_;
  require((verdict.kind == VerdictKind::success) == (verdict.exit_code == 0), "exit code ", verdict.exit_code);
  require(!verdict.why.empty(), "a verdict without a reason");
  require(verdict.restarts == coordinator_.job().budget.used(), "the verdict counts other restarts");
  switch (verdict.kind) {
    case VerdictKind::success:
      require(!starts_.empty() && started_ == coordinator_.job().round, "success of nothing");
      for (const auto& [link, ranks] : starts_) {
        require(succeeded_.count(link) != 0 && stopped_.count(link) != 0, "success without link ", link);
      }
      break;
    case VerdictKind::worker_failed:
      require(first_failure_ == std::pair(verdict.host, verdict.rank), "another worker failed first than ",
              verdict.why);
      break;
    case VerdictKind::stopped_by_signal:
      require(signals_.count(verdict.signal) != 0 && verdict.exit_code == 128 + verdict.signal, "no such signal");
      break;
    case VerdictKind::node_lost: require(any_loss_, "nothing was lost"); break;
    case VerdictKind::timed_out: require(scenario_.skew_s != 0 || aborted_, "no time was up"); break;
    case VerdictKind::launcher_failed:
      require(aborted_ || verdict.why.find(" machines came within ") != std::string::npos, "nobody gave up");
      break;
  }
}

void Invariants::check_finished() const {
  if (verdict_) check_verdict();
  require(coordinator_.job().members.empty(), "members are left");
}

}  // namespace ddrun::test
