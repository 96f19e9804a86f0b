#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "simulated_exchange.hpp"
#include "simulated_survey.hpp"
#include "simulation_invariants.hpp"
#include "simulation_network.hpp"
#include "simulation_scenario.hpp"

namespace ddrun::test {

/// A coordinator, agents that follow the protocol, and the disturbances of a scenario, in virtual time.
class World {
 public:
  explicit World(Scenario scenario, bool tracing = false);

  /// Throws a Violation.
  void run();

  /// The last events, if tracing.
  [[nodiscard]] std::string trace() const;
  struct Summary {
    std::optional<VerdictMessage> verdict;
    Round rounds = 0;
    std::uint64_t hash = 0;  ///< of its history
  };
  [[nodiscard]] Summary summary() const;

 private:
  enum class Outcome { none, verdict, refused, coordinator_lost, no_coordinator, crashed, vanished };
  enum class Workers { none, opening, running, stopping };
  struct Agent {
    std::string host;
    std::string agent_id;
    int number = 0;  ///< of its machine
    int wanted_rank = -1;
    bool wrong_settings = false;
    bool joined = false;
    LinkId link = 0;
    Workers workers = Workers::none;
    Round round = 0;
    int base_rank = 0;
    bool sent_stopped = true;
    SimulatedExchange exchange{0};
    bool owes_success = false;  ///< once the exchanges are complete
    SimulatedQuestions questions;
    SimulatedAnswers answers;
    bool leaving = false;
    int disturbed = 0;  ///< number of faults of its connection
    bool welcomed = false;
    bool watching = false;
    Clock::time_point last_heard;
    std::optional<Clock::time_point> taken_since;  ///< another agent has its node rank or id
    Outcome outcome = Outcome::none;
  };

  // simulation_world.cpp: the coordinator's side
  void disturb(const Scenario::Disturbance& what);
  void ask(const Scenario::Question& question);
  void run_coordinator(const std::function<void()>& what, bool ticked);
  void coordinator_receives(LinkId link, const FromAgent& message);
  void coordinator_disconnected(LinkId link, const std::string& how);
  void schedule_tick();
  void check_outcomes() const;
  [[nodiscard]] bool is_own(std::size_t agent) const { return scenario_.embedded && agent == 0; }

  // simulation_agent.cpp
  std::size_t add_agent(const std::string& host, int number, int wanted_rank, Clock::duration when);
  void connect(std::size_t agent);
  void receives(std::size_t agent, LinkId link, const FromCoordinator& message);
  void on(std::size_t agent, const Open& open);
  void on(std::size_t agent, const Start& start);
  void on(std::size_t agent, const Exchanged& part);
  void on(std::size_t agent, const Ping& ping);
  void on(std::size_t agent, const Stop& stop);
  void answer(std::size_t agent, std::uint32_t look);
  void send_answers(std::size_t agent);
  void contribute_later(std::size_t agent, std::optional<Exchange> part);
  void disconnected(std::size_t agent, LinkId link);
  void watch(std::size_t agent);
  void workers_end(std::size_t agent, Round round, bool well);
  void stop_workers(std::size_t agent);
  void sends(std::size_t agent, const FromAgent& message);
  void ends(std::size_t agent, Outcome outcome);
  void leave(std::size_t agent);
  void crash(std::size_t agent, bool silently);
  void note_fault(std::size_t agent);

  void note(const std::function<std::string()>& text);

  Scenario scenario_;
  bool tracing_;
  Random random_;
  Random survey_random_;  ///< of questions and answers
  Timeline timeline_;
  Network network_;
  Coordinator coordinator_;
  Invariants invariants_;
  std::deque<Agent> agents_;
  std::map<LinkId, LinkAddresses> addresses_;
  std::map<LinkId, std::uint64_t> received_;  ///< messages that the coordinator counts
  std::optional<Clock::time_point> tick_at_;
  Clock::time_point blocked_until_;
  Clock::time_point start_;
  bool was_suspended_ = false;
  std::deque<std::string> trace_;
};

}  // namespace ddrun::test
