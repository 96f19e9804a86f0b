#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ddrun/base/address.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/rendezvous/messages.hpp"

namespace ddrun::rendezvous {

/// A connection, as the transport numbers it; never used twice.
using LinkId = std::uint64_t;

struct CoordinatorOptions {
  std::string host;                      ///< of the machine it runs on
  std::string job_id;                    ///< the only job that is served; empty: that of the first Join
  std::vector<IpAddress> own_addresses;  ///< of this machine; loopback need not be among them
  Milliseconds heartbeat_interval{1'000};
  int heartbeat_misses = 3;
  /// The only member is in this very process and calls this object: it cannot be lost, so it is not asked for signs of
  /// life, may take what time it needs, and may have any number of workers.
  bool single_member = false;
  bool with_events = true;  ///< EventLine is sent
  /// The how manieth coordinator of the job this is, as who leads a job is decided elsewhere; 0: it is the only one.
  /// From 1 on the members of a job that has lost its coordinator are taken over by their claims: it waits until those
  /// of the last round are there, or can run no workers any more.
  Term term = 0;
  /// A lease decides who leads. Its holder stops to act as the coordinator before another one has it: see suspend().
  /// The verdict is recorded with it before it is told: see take_verdict_to_record().
  bool has_lease = false;
  /// A coordinator before this one that lives, and was deposed, may not know for so long.
  Milliseconds lease_ttl{0};
  /// While it is over, so long nothing may be begun or ended that would have to be; then this coordinator stands down.
  Milliseconds suspend_timeout{30'000};
  /// What the agent in this very process will say, if there is one: it alone runs the coordinator, whatever others say,
  /// and what it says of the job is what all others are compared with, whoever comes first.
  std::optional<Join> own_join;
};

/// What the transport knows about a connection.
struct LinkFacts {
  IpAddress peer_address;   ///< where it comes from
  IpAddress local_address;  ///< what it reached
};

/// Decides for one job: who takes part in which round, with which ranks, when a round is over and how the job ends
/// (lib/rendezvous/PROTOCOL.md, section 5). A pure state machine: its owner says what happens and when, carries
/// out what it wants, and calls `tick` at `next_deadline`. It has no clock, no sockets and no threads, never blocks and
/// never fails; memory grows with the number of members only.
class Coordinator {
 public:
  explicit Coordinator(CoordinatorOptions options);
  ~Coordinator();
  Coordinator(Coordinator&&) noexcept;
  Coordinator& operator=(Coordinator&&) noexcept;

  /// A link said Join, as its first message.
  void join(LinkId link, const Join& join, const LinkFacts& facts, Clock::time_point now);
  /// Any later message. One that makes no sense at this point is ignored; a second Join ends the link.
  void receive(LinkId link, const FromAgent& message, Clock::time_point now);
  /// Something came from it that is not a whole message yet.
  void note_activity(LinkId link, Clock::time_point now);
  /// The connection broke, and another one may take its place under the same number: the member has as long for that as
  /// a silent one. `how` is for people ("connection reset by peer").
  void connection_broken(LinkId link, const std::string& how);
  /// The agent has closed the connection, or its process has ended.
  void lost(LinkId link, const std::string& how, Clock::time_point now);
  /// Time has passed.
  void tick(Clock::time_point now);

  // Of a coordinator with a lease.
  /// The lease is over, and another may have it soon: no round begins and no verdict is told from now on. The round
  /// that runs goes on, unless members are lost.
  void suspend(Clock::time_point now);
  /// It is this one's again, with a new term.
  void lead(Term term, Clock::time_point now);
  /// Another has it, or is to have it. All members are told to look for the next coordinator.
  void step_down(const std::string& why, Clock::time_point now);
  /// Of a job that has just ended: to be recorded, then recorded() is to be called. Nothing while suspended; once more
  /// after lead() if it was not recorded.
  [[nodiscard]] std::optional<VerdictMessage> take_verdict_to_record();
  void recorded(Clock::time_point now);
  /// It has stood down, of itself where the agent in its process leaves.
  [[nodiscard]] bool stepped_down() const;

  /// A message to send, or, without one, a link to close once everything before is on its way.
  struct Output {
    LinkId link = 0;
    std::optional<FromCoordinator> message;
  };
  /// What is to be done, in order; empties the list. To be called after each of the above.
  [[nodiscard]] std::vector<Output> take_outputs();
  /// When `tick` is wanted; nothing while nothing is waited for.
  [[nodiscard]] std::optional<Clock::time_point> next_deadline() const;

  /// The job has ended and every agent has heard so, or had its time to.
  [[nodiscard]] bool done() const;

  // For tests and for those who watch.
  struct MemberView {
    LinkId link = 0;
    std::string host;
    int node_rank = -1;  ///< -1: not in the present round
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
