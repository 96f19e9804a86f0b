#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "causes.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "job.hpp"
#include "membership.hpp"
#include "settings.hpp"
#include "survey.hpp"

namespace ddrun::rendezvous {

/// Why a round is stopped, and what follows.
struct Ending {
  enum class Next { new_round, restart, end_of_job };  ///< a new round costs no restart

  VerdictMessage cause;  ///< the verdict if the job ends here
  Next next = Next::new_round;
  LinkId cause_link = 0;       ///< its STOPPED has the details; 0: none has
  std::string machine = {};    ///< where the worker failed
  std::string reason = {};     ///< of that failure, if it is known already
  std::string announced = {};  ///< of the cause, by STOP to all members
  bool had_started = false;    ///< workers were running
  int signal = 0;              ///< of the last STOP
  bool looks = false;          ///< STOP asks where the ranks are: one of them waited in vain for others
  Clock::time_point since = {};
  CauseDetails details = {};

  [[nodiscard]] bool is_final() const { return next == Next::end_of_job; }
  [[nodiscard]] bool is_restart() const { return next == Next::restart; }
  /// For a failure or a loss: a restart if one is left.
  void set_restart(bool any_left) { next = any_left ? Next::restart : Next::end_of_job; }
  void replace(VerdictMessage by, LinkId link) {
    cause = std::move(by);
    cause_link = link;
    details.clear();
  }
};

/// Compares failures that led to restarts; a new coordinator starts from zero.
class FailureHistory {
 public:
  /// Why another restart would fail as the last ones did; empty if unknown. `started_at`: the round. Not with
  /// node_max_failures, since excluding a host may help.
  [[nodiscard]] std::string add(const Ending& ending, Clock::time_point started_at, const JobSettings& settings);

 private:
  std::string key_;  ///< empty: cause unknown
  int exit_code_ = 0;
  bool at_start_ = false;
  int times_ = 0;  ///< consecutive
};

/// The members of a round with their Part in it, counted; also once the round is over.
class RoundMembers {
 public:
  /// In order of their node ranks, from 0.
  void begin(std::vector<Member*> members) {
    members_ = std::move(members);
    counts_ = {};
    for (std::size_t rank = 0; rank < members_.size(); ++rank) {
      members_[rank]->node_rank = static_cast<int>(rank);
      members_[rank]->part = Part::chosen;
      ++count_of(Part::chosen);
    }
  }
  void set(Member& member, Part part) {
    --count_of(member.part);
    ++count_of(part);
    member.part = part;
  }
  /// They are in no round any more.
  void dissolve() {
    for (Member* member : members_) set(*member, Part::none);
  }
  /// For each member that is removed from the job, before that.
  void remove(const Member& member) {
    const auto at = std::lower_bound(members_.begin(), members_.end(), member.node_rank,
                                     [](const Member* one, int rank) { return one->node_rank < rank; });
    if (at == members_.end() || *at != &member) return;
    --count_of(member.part);
    members_.erase(at);
  }

  /// Those that were not removed, in order of node rank.
  [[nodiscard]] const std::vector<Member*>& all() const { return members_; }
  [[nodiscard]] std::size_t size() const { return members_.size(); }
  [[nodiscard]] std::size_t count(Part part) const { return counts_[static_cast<std::size_t>(part)]; }
  /// Members whose STOPPED is to come.
  [[nodiscard]] std::size_t to_stop() const { return count(Part::notified) + count(Part::succeeded); }
  /// The member with node rank 0; null if it was removed.
  [[nodiscard]] Member* first() const {
    return members_.empty() || members_.front()->node_rank != 0 ? nullptr : members_.front();
  }

 private:
  [[nodiscard]] std::size_t& count_of(Part part) { return counts_[static_cast<std::size_t>(part)]; }

  std::vector<Member*> members_;
  std::array<std::size_t, 6> counts_{};
};

/// Collects the blobs of a round's members by tag (PROTOCOL.md, section 5). A member contributes to tag 0, 1, 2 … in
/// this order, to the next but one before the last is complete at most; what does not fit is ignored. Tags with the
/// highest bit have an order of their own: another object.
class Exchanges {
 public:
  static constexpr std::uint32_t other_order = 0x80000000U;

  /// Forgets the blobs of the round before.
  void begin(Round round, std::size_t members);
  /// The messages for all members, in order, if this was the last blob of its tag; else none. Fails with
  /// `unavailable` for more than can be sent.
  [[nodiscard]] Result<std::vector<Exchanged>> add(int node_rank, const Exchange& from);
  /// Others have contributed to the tag that is this member's next.
  [[nodiscard]] bool waits_for(int node_rank) const {
    const std::uint32_t next = next_.at(static_cast<std::size_t>(node_rank));
    return next - complete_ < open_.size() && open_[next % open_.size()].count > 0;
  }

 private:
  struct Open {
    std::vector<std::string> blobs;  ///< by node rank; empty before the first one
    std::size_t count = 0;
    std::size_t bytes = 0;
  };

  Round round_ = 0;
  std::vector<std::uint32_t> next_;  ///< tag of each member
  std::uint32_t complete_ = 0;       ///< number of complete tags
  std::array<Open, 2> open_;         ///< tags that are not complete, by their lowest bit
};

/// One round of a job, from OPEN until the last STOPPED: the states opening, running and stopping. Which members take
/// part, and what comes after, is decided by Coordinator.
class RoundMachine {
 public:
  RoundMachine(Job& job, Survey& survey) : job_(job), survey_(survey) {}

  /// `members` in order of their node ranks.
  void begin(std::vector<Member*> members);

  // Messages of members. One of an earlier round, or that does not fit the state, is ignored.
  void on(Member& member, const Opened& message);
  void on(Member& member, const Failed& message);
  void on(Member& member, const Succeeded& message);
  void on(Member& member, const Stopped& message);
  void on(const Member& member, const PassSignal& message);
  void on(const Member& member, const Exchange& message);

  /// `gone` was a member, and is removed. `since`: its last sign of life. `broken`: its connection has ended.
  void on_lost(const Member& gone, VerdictMessage cause, Clock::time_point since, bool broken);
  /// For the others this node is lost; its agent still answers, so its STOPPED is awaited, and its verdict is its own
  /// reason.
  void lose_orderly(Member& member, const Leave& message);
  void on_suspended();

  /// `signal` for the workers; 0: SIGTERM.
  void stop(Ending ending, int signal = 0);
  /// The job ends with this cause. `member` has its details; may be null.
  void stop_permanently(VerdictMessage cause, const Member* member, int signal = 0);
  void on_skew();

  // Newcomers: admitting one restarts all workers, so they are collected for a while.
  [[nodiscard]] bool has_free_place() const;
  void admit(Member& newcomer, bool spare);
  void admit_waiting();
  void schedule_admission();

  /// Why the round has ended, once it has: all members are finished, or stopped. The machine is idle then.
  [[nodiscard]] std::optional<Ending> take_ended();

  [[nodiscard]] RoundMembers& members() { return members_; }
  [[nodiscard]] bool has_workers() const;
  /// It is being stopped, and another round follows.
  [[nodiscard]] bool is_stopping_for_another() const { return ending_ && !ending_->is_final(); }
  [[nodiscard]] bool owes_restart() const { return ending_ && ending_->is_restart(); }
  [[nodiscard]] Clock::time_point started_at() const { return started_at_; }

 private:
  void start(std::uint16_t port);
  void check_exchange();
  void stop_for_cause(Ending ending, bool may_restart);
  void restart_for_newcomers(const std::vector<const Member*>& newcomers);
  void send_stop(int signal);
  void escalate_to_kill();
  void lost_while_stopping(VerdictMessage cause, Clock::time_point since, bool broken);
  void count_loss(VerdictMessage cause);
  [[nodiscard]] Clock::duration settle_time() const;
  [[nodiscard]] Clock::time_point admit_from() const;

  Job& job_;
  Survey& survey_;
  RoundMembers members_;
  std::array<Exchanges, 2> exchanges_;  ///< by the highest bit of tags
  bool any_succeeded_ = false;
  std::string address_;  ///< of node rank 0
  Clock::time_point started_at_;
  std::optional<Ending> ending_;                 ///< while stopping
  std::optional<VerdictMessage> lost_finished_;  ///< a finished member was lost: the cause, if it counts later
};

}  // namespace ddrun::rendezvous
