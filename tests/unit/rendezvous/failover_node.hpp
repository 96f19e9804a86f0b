#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "coordinator.hpp"
#include "failover_lease.hpp"
#include "failover_server.hpp"

namespace ddrun::test {

class FailoverWorld;

/// The agent of one machine, from start to end: the behaviour of JobRendezvous and AgentLink with a lease, function by
/// function and with the same names, with workers that succeed, fail, or stop slowly.
class SimulatedNode : public std::enable_shared_from_this<SimulatedNode> {
 public:
  enum class Outcome { none, verdict, refused, left, coordinator_lost, killed };

  SimulatedNode(FailoverWorld& world, std::size_t index, std::size_t machine, std::string host);

  // External actions.
  void begin();
  void leave(int signal);
  /// The process is suspended for this time.
  void suspend_for(Clock::duration time);
  void kill(bool with_its_machine, bool gives_lease_back);

  // Input of its connections.
  void receives(rendezvous::LinkId link, const rendezvous::FromCoordinator& message);
  void disconnected(rendezvous::LinkId link);
  void connected(std::uint64_t attempt, rendezvous::LinkId link);
  /// `refused`: the machine has sent a reset.
  void not_connected(std::uint64_t attempt, bool refused);

  /// At once, or when the process resumes.
  void turn(const std::function<void()>& what);
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
  [[nodiscard]] const std::optional<rendezvous::VerdictMessage>& verdict() const { return verdict_; }
  [[nodiscard]] const rendezvous::RoundClaim& claim() const { return claim_; }
  [[nodiscard]] Clock::time_point searched_since() const { return searched_since_; }
  [[nodiscard]] Clock::time_point welcomed_at() const { return welcomed_at_; }
  void slow_clock(double factor) {
    if (lease_) lease_->slow_down(factor);
  }

 private:
  enum class Stage { none, searching, connecting, joining, joined };
  enum class Workers { none, opening, running, stopping };

  template <class Action>
  void later(Clock::duration time, Action action);

  // As in dialer.cpp.
  void begin_link(Clock::time_point connect_by);
  void connect();
  void attempt_failed();
  [[nodiscard]] bool is_not_listening() const;
  void give_up();
  void link_lost(const std::string& why);
  void reset_link();
  void reset_former_link();
  void close_link(rendezvous::LinkId link);
  void watch_silence();
  void say(const rendezvous::FromAgent& message);

  // As in job_rendezvous.cpp.
  [[nodiscard]] rendezvous::Join join_message() const;
  void start_coordinator();
  void join_by(Clock::time_point deadline);
  void on(const rendezvous::Welcome& welcome);
  void on(const rendezvous::Refused& refused);
  void on(const rendezvous::Open& open);
  void on(const rendezvous::Start& start);
  void on(const rendezvous::Stop& stop);
  void on(const rendezvous::VerdictMessage& verdict);
  template <class Other>
  void on(const Other& /*other*/) {}
  void stopped(rendezvous::Round round);
  void on_link_lost(const std::string& why);
  void rejoin(const std::string& why, int signal = 0);
  void find_coordinator_again();
  void campaign();
  void stop_campaigning();
  void search_coordinator(Clock::time_point until);
  void on_no_leader_in_time();
  void on(const lease::Leader& leader);
  void on(const lease::tell::NoLeader& /*none*/) { leader_.reset(); }
  void on(const lease::tell::Lost& lost);
  void on(const lease::tell::Verdict& verdict);
  void lead(rendezvous::Term term);
  void follow(const lease::Leader& leader);
  void on_coordinator_not_listening();
  int step_down(const std::string& why);
  void stepped_down(std::uint64_t server);
  void record(const rendezvous::VerdictMessage& verdict);
  void recorded(const rendezvous::VerdictMessage& verdict, bool done);
  void end_as_recorded();
  void resign();
  void end(Outcome outcome, std::optional<rendezvous::VerdictMessage> verdict);
  void job_done(std::uint64_t server);
  void try_finish_close();
  void exit();
  void close(std::shared_ptr<SimulatedServer>& server);

  // Workers.
  void on_workers_end(rendezvous::Round round, bool well);
  void stop_workers(int signal);
  void on_workers_ended();

  FailoverWorld& world_;
  std::size_t index_, machine_;
  std::string host_, agent_id_;
  int agent_ids_ = 0;
  bool is_alive_ = true;
  Clock::time_point stopped_until_;
  std::shared_ptr<SimulatedLease> lease_;
  std::shared_ptr<SimulatedServer> server_, former_server_;

  Stage stage_ = Stage::none;
  rendezvous::LinkId link_ = 0, former_link_ = 0;
  std::uint64_t attempt_ = 0;
  Clock::time_point connect_by_, last_heard_;
  Clock::duration pause_{};
  std::optional<Clock::time_point> refused_since_;
  rendezvous::Join join_;
  bool is_local_ = false;
  std::string target_;

  rendezvous::Round started_ = 0;
  bool waits_for_no_verdict_ = false;
  bool is_member_ = false, superseded_ = false, has_workers_ = false, rejoining_ = false, job_done_ = false;
  rendezvous::RoundClaim claim_;
  std::optional<rendezvous::Leave> leave_;
  bool is_candidate_ = false, searching_ = false;
  Clock::time_point search_until_, searched_since_, welcomed_at_;
  std::uint64_t search_ = 0;
  rendezvous::Term term_ = 0, joined_term_ = 0;
  std::optional<lease::Leader> leader_, followed_;
  std::optional<rendezvous::VerdictMessage> recorded_;
  bool resigned_ = false, resigning_ = false, is_over_ = false, closing_ = false;

  Workers workers_ = Workers::none;
  bool workers_live_ = false;
  rendezvous::Round workers_round_ = 0;
  std::uint64_t stop_ = 0;
  int base_rank_ = 0;
  Outcome outcome_ = Outcome::none;
  std::optional<rendezvous::VerdictMessage> verdict_;
};

}  // namespace ddrun::test
