#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ddrun/base/text.hpp"
#include "failover_invariants.hpp"
#include "failover_member.hpp"
#include "failover_scenario.hpp"
#include "simulation_invariants.hpp"
#include "simulation_network.hpp"

namespace ddrun::test {

/// Machines whose agents may each run the coordinator, the lease engine, and the faults of a scenario, in virtual time.
class FailoverWorld {
 public:
  explicit FailoverWorld(FailoverScenario drawn, bool tracing = false);

  /// Throws a Violation.
  void run();
  /// Runs until this many machines have workers of a later round; false after `time`.
  bool run_until_started(Round round, std::size_t machines, Clock::duration time);

  /// The last events, if tracing.
  [[nodiscard]] std::string trace() const;
  struct Summary {
    std::optional<VerdictMessage> verdict;  ///< as recorded
    Round rounds = 0;
    std::uint64_t hash = 0;  ///< of its history
    std::size_t terms = 0;   ///< in which rounds were started
  };
  [[nodiscard]] Summary summary() const;

  // For its parts.
  const FailoverScenario scenario;
  Timeline timeline;
  Random random;
  Random survey_random;  ///< of questions and answers
  Engine engine;
  FailoverInvariants invariants;
  [[nodiscard]] const std::vector<std::shared_ptr<SimulatedMember>>& nodes() const { return nodes_; }
  [[nodiscard]] IpAddress address_of(std::size_t machine) const;
  [[nodiscard]] bool reaches_engine(std::size_t machine) const;
  std::uint64_t next_server() { return ++servers_; }
  /// `done`: with the link; with 0 if there was no answer, or the machine has `refused`.
  using OnConnect = std::function<void(LinkId link, bool refused)>;
  /// `to`: the port is the number of a server.
  void connect(const SimulatedMember& from, const Endpoint& to, OnConnect done);
  /// The member has heard nothing on this link for too long.
  void on_silence(const SimulatedMember& node, LinkId link) {
    note([&] { return concat(node.host(), " has heard nothing from its coordinator"); });
    invariants.on_coordinator_lost(node, coordinator_node(link));
  }
  void to_coordinator(LinkId link, const FromAgent& message);
  void to_agent(LinkId link, const FromCoordinator& message);
  void close_by_agent(LinkId link) { network_.close_by_agent(link); }
  void close_by_coordinator(LinkId link) { network_.close_by_coordinator(link); }
  /// The process ends without a message.
  void on_node_ended(const SimulatedMember& node, bool with_its_machine);
  [[nodiscard]] const SimulatedMember* coordinator_node(LinkId link) const;
  void note(const std::function<std::string()>& text);

  // For tests.
  /// SIGTERM for the agent.
  void preempt(std::size_t node);
  [[nodiscard]] std::optional<std::size_t> leader() const;

 private:
  struct Machine {
    std::string host;
    bool up = true;
    std::size_t node = 0;  ///< the last agent on it
  };
  struct Cut {
    std::set<std::size_t> inside;
    bool engine_inside = false;
    bool others_inside = false;  ///< only the engine is cut off
    Clock::time_point until;
    std::optional<FailoverScenario::Kind> one_way{};  ///< mute, deaf: all still reach the engine
  };
  struct Connection {
    std::size_t node = 0;         ///< the agent
    std::size_t coordinator = 0;  ///< the node that runs the coordinator
    std::uint64_t server = 0;
    LinkAddresses addresses;
  };
  std::size_t add_machine(Clock::duration when);
  void add_node(std::size_t machine, Clock::duration when);
  void inject(const FailoverScenario::Fault& fault);
  void stop(SimulatedMember& node, Clock::duration time, bool alone);
  void cut(Cut what, Clock::duration time);
  [[nodiscard]] Clock::time_point apart_until(std::size_t a, std::size_t b) const;
  void try_connect(std::size_t node, std::size_t machine, std::uint64_t server, Clock::time_point until,
                   OnConnect done);
  [[nodiscard]] std::shared_ptr<SimulatedServer> server_at(LinkId link) const;

  bool tracing_;
  Network network_;
  std::vector<Machine> machines_;
  std::vector<std::shared_ptr<SimulatedMember>> nodes_;
  std::vector<Cut> cuts_;
  std::map<LinkId, Connection> connections_;
  std::uint64_t servers_ = 0;
  Clock::time_point start_;
  std::deque<std::string> trace_;
};

}  // namespace ddrun::test
