#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ddrun/base/address.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/rendezvous/link_id.hpp"
#include "ddrun/rendezvous/messages.hpp"

namespace ddrun::rendezvous {

struct CoordinatorOptions {
  std::string host;                      ///< of this machine
  std::string job_id;                    ///< the only job served; empty: that of the first Join
  std::vector<IpAddress> own_addresses;  ///< of this machine; loopback may be missing
  Milliseconds heartbeat_interval{1'000};
  int heartbeat_misses = 3;
  /// The only member is in this process and calls this object: no heartbeats, no time limits, any number of workers.
  bool single_member = false;
  bool with_events = true;    ///< send EventLine
  int first_round_nodes = 0;  ///< with so many the first round begins without a last call; 0: only with the maximum
  /// Number of this coordinator in the job, if a lease decides who leads; 0: no successor possible. From 1 on it takes
  /// over a running job from its members' claims: it waits until the members of the last round have rejoined, or their
  /// workers must have ended.
  Term term = 0;
  /// Leadership is bound to a lease: see suspend(). The verdict is recorded before it is sent: see
  /// take_verdict_to_record().
  bool has_lease = false;
  /// Within this time a deposed coordinator may still be unaware of it.
  Milliseconds lease_ttl{0};
  /// How long a round or a verdict may wait for an expired lease before this coordinator steps down.
  Milliseconds suspend_timeout{30'000};
  /// The Join of the agent in this process, if there is one. Only this agent is the coordinator's own, and its settings
  /// define the job, even if another agent joins first.
  std::optional<Join> own_join;
};

/// Decides for one job which members form which round, with which ranks, when a round is over and how the job ends
/// (lib/rendezvous/PROTOCOL.md, section 5). A pure state machine: its owner passes in events and the time, carries out
/// take_outputs(), and calls `tick` at `next_deadline`. No clock, sockets or threads; never blocks and never fails;
/// memory is proportional to the number of members. Not thread-safe.
class Coordinator {
 public:
  explicit Coordinator(CoordinatorOptions options);
  ~Coordinator();
  Coordinator(Coordinator&&) noexcept;
  Coordinator& operator=(Coordinator&&) noexcept;

  /// The first message of a link.
  void join(LinkId link, const Join& join, const LinkAddresses& addresses, Clock::time_point now);
  /// Any later message. One that does not fit the phase is ignored; a second Join closes the link.
  void receive(LinkId link, const FromAgent& message, Clock::time_point now);
  /// Part of a message arrived: counts as a sign of life.
  void note_activity(LinkId link, Clock::time_point now);
  /// The connection was reset; it may resume under the same number within the heartbeat timeout. `how` is for messages
  /// ("connection reset by peer").
  void connection_broken(LinkId link, const std::string& how);
  /// The agent closed the connection, or its process ended.
  void lost(LinkId link, const std::string& how, Clock::time_point now);
  /// Runs what is due.
  void tick(Clock::time_point now);

  // With a lease:
  /// The lease expired, and another coordinator may get it: from now on no round begins and no verdict is sent. The
  /// running round continues unless members are lost.
  void suspend(Clock::time_point now);
  /// The lease is held again, with a new term.
  void lead(Term term, Clock::time_point now);
  /// Another coordinator leads, or will. All members are sent to it.
  void step_down(const std::string& why, Clock::time_point now);
  /// The verdict of a job that has just ended: record it, then call recorded(). Empty while suspended; returned once
  /// more after lead() if it was not recorded.
  [[nodiscard]] std::optional<VerdictMessage> take_verdict_to_record();
  void recorded(Clock::time_point now);
  /// After step_down(), or by itself when the agent in its process leaves.
  [[nodiscard]] bool stepped_down() const;

  /// A message to send; without one: close the link after everything queued before.
  struct Output {
    LinkId link = 0;
    std::optional<FromCoordinator> message;
  };
  /// Pending actions in order; empties the list. Call after each of the functions above.
  [[nodiscard]] std::vector<Output> take_outputs();
  /// Texts for the user of this process, such as refused machines; empties the list. Limit their rate.
  [[nodiscard]] std::vector<std::string> take_warnings();
  /// When to call `tick`; empty if nothing is pending.
  [[nodiscard]] std::optional<Clock::time_point> next_deadline() const;

  /// The job has ended, and every agent was notified or timed out.
  [[nodiscard]] bool done() const;

  // For tests and status displays.
  struct MemberView {
    LinkId link = 0;
    std::string host;
    int node_rank = -1;  ///< -1: not in the current round
    bool spare = false;
  };
  [[nodiscard]] std::vector<MemberView> members() const;
  [[nodiscard]] Round round() const;
  [[nodiscard]] int restarts() const;
  [[nodiscard]] std::optional<VerdictMessage> verdict() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace ddrun::rendezvous
