#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "ddrun/process/overdue_workers.hpp"
#include "failover_lease.hpp"
#include "failover_link.hpp"
#include "failover_server.hpp"
#include "member_machine.hpp"
#include "simulated_exchange.hpp"
#include "simulated_survey.hpp"

namespace ddrun::test {

class FailoverWorld;

/// One machine of a job from start to end: carries out the actions of a MemberMachine, with a simulated link, lease and
/// servers, for an agent whose workers succeed, fail, or stop slowly.
class SimulatedMember : public std::enable_shared_from_this<SimulatedMember> {
 public:
  enum class Outcome { none, verdict, refused, left, coordinator_lost, killed };

  SimulatedMember(FailoverWorld& world, std::size_t index, std::size_t machine, std::string host);

  // External actions.
  void begin();
  void leave(int signal);
  /// The process is suspended for this time, alone or with its whole machine.
  void suspend_for(Clock::duration time, bool alone);
  void kill(bool with_its_machine, bool gives_lease_back);

  // Input of its connections.
  void receives(LinkId link, const FromCoordinator& message);
  void disconnected(LinkId link);

  // Of its link's thread.
  void note_workers(bool run, std::optional<Clock::time_point> lose_sight_at, Milliseconds heartbeat);
  /// The grace of lost sight after `since`, whatever the agent does.
  void kill_workers_after(Clock::time_point since);

  /// At once, or when the process resumes; not after its end.
  void turn(const std::function<void()>& what);
  void later(Clock::duration time, std::function<void()> what);
  void lease_changed() {
    if (lease_) lease_->changed();
  }
  [[nodiscard]] std::shared_ptr<SimulatedServer> server_of(std::uint64_t number) const;

  [[nodiscard]] std::size_t index() const { return index_; }
  [[nodiscard]] std::size_t machine() const { return machine_; }
  [[nodiscard]] const std::string& host() const { return host_; }
  [[nodiscard]] bool is_alive() const { return is_alive_; }
  [[nodiscard]] bool is_stopped() const;
  [[nodiscard]] bool is_leader() const { return is_alive_ && lease_ && lease_->is_leader(); }
  [[nodiscard]] Outcome outcome() const { return outcome_; }
  [[nodiscard]] const std::optional<VerdictMessage>& verdict() const { return verdict_; }
  [[nodiscard]] Clock::time_point searched_since() const { return searched_since_; }
  [[nodiscard]] Clock::time_point welcomed_at() const { return welcomed_at_; }
  void slow_clock(double factor) {
    if (lease_) lease_->slow_down(factor);
  }

 private:
  enum class Workers { none, skipped, running, stopping };  ///< skipped: START came after LEAVE

  void step(const MemberEvent& event);
  void arm_timer();
  template <class Action>
  void carry_out(const Action& action);
  void close_link();
  void close(std::shared_ptr<SimulatedServer>& server);
  void drop_all();
  void exit();

  // Actions.
  void carry_out(const ToAgent& what);
  void carry_out(const member_action::Dial& dial);
  void carry_out(const member_action::StartServer& order);
  void carry_out(const member_action::Record& record);
  [[nodiscard]] SimulatedServer& server() const { return *servers_.rbegin()->second; }
  [[nodiscard]] std::string address() const;

  // The agent.
  void hear(const RoundBegins& begins);
  void hear(const StopOrder& order);
  void hear(const CoordinatorLost& lost);
  void hear(const Exchanged& part);
  void hear(const Look& look) { answer(look.number); }
  void hear(const Page& page) { questions_.take(page); }
  void ask_later(int left);
  void answer(std::uint32_t look);
  void contribute_later(std::optional<Exchange> part);
  template <class Other>
  void hear(const Other&) {}
  void end(Outcome outcome, std::optional<VerdictMessage> verdict);
  void on_workers_end(Round round, bool well);
  void stop_workers(int signal, Milliseconds max_grace = Milliseconds::max());
  void on_workers_ended();
  [[nodiscard]] Milliseconds lost_sight_grace() const;

  // The sweeper.
  void look();
  void end_workers();

  FailoverWorld& world_;
  std::size_t index_, machine_;
  std::string host_;
  int agent_ids_ = 0;
  bool is_alive_ = true;
  Clock::time_point stopped_until_;
  bool is_stopped_alone_ = false;
  std::optional<Clock::time_point> armed_;
  MemberMachine member_;
  std::deque<MemberEvent> events_;
  std::shared_ptr<SimulatedLease> lease_;
  std::map<int, std::shared_ptr<SimulatedServer>> servers_;
  std::shared_ptr<SimulatedLink> link_;
  Clock::time_point searched_since_, welcomed_at_;
  std::optional<Start> start_;  ///< the last one

  process::OverdueWorkers overdue_;
  process::OverdueWorkers::Deadline deadline_;
  std::optional<std::chrono::nanoseconds> look_at_;
  Clock::time_point leads_until_;
  bool is_swept_ = false;  ///< and does not know it yet

  Workers workers_ = Workers::none;
  bool workers_live_ = false;
  bool is_leaving_ = false, awaits_verdict_ = true;
  SimulatedExchange exchange_;
  bool owes_success_ = false;  ///< once the exchanges are complete
  SimulatedQuestions questions_;
  std::uint64_t stop_ = 0;  ///< number of the last order to stop
  Clock::time_point stopped_by_;
  Outcome told_ = Outcome::none;  ///< what a verdict of the present step means
  Outcome outcome_ = Outcome::none;
  std::optional<VerdictMessage> verdict_;
};

}  // namespace ddrun::test
