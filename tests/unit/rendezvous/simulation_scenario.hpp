#pragma once

#include <string>
#include <vector>

#include "ddrun/rendezvous/messages.hpp"
#include "simulation_timeline.hpp"

namespace ddrun::test {

/// One simulated job, drawn from a seed.
struct Scenario {
  std::uint64_t seed = 0;
  int min_nodes = 1;
  int max_nodes = 1;
  bool given_ranks = false;  ///< each of the first max_nodes agents has a --node-rank
  bool embedded = true;      ///< agent 0 runs the coordinator, without faults
  int max_restarts = 0;
  Milliseconds backoff{0};
  int window_s = 0;  ///< 0: none
  Milliseconds last_call{0};
  Milliseconds join_timeout{0};
  Milliseconds grace{0};
  int skew_s = 0;  ///< 0: none
  int node_max_failures = 0;
  int agents = 1;
  Clock::duration arrival_spread{0};
  Clock::duration max_run{0};  ///< of a worker
  double failing = 0;          ///< a node's workers fail in a round
  double stuck = 0;            ///< a node never sends OPENED or STOPPED
  double aborting = 0;         ///< a node cannot go on after OPEN or START
  double reconnecting = 0;     ///< an agent connects twice
  Clock::duration max_latency{0};
  std::uint32_t exchanges = 0;  ///< in each round, before its workers succeed; not drawn

  enum class Kind {
    crash,
    vanish,
    stall,
    leave,
    leave_all,
    newcomer,
    machine_restarted,
    wrong_settings,
    coordinator_suspended
  };
  struct Disturbance {
    Kind kind = Kind::crash;
    Clock::duration when{0};
    std::size_t agent = 0;  ///< modulo the number of agents
    Clock::duration time{0};
  };
  std::vector<Disturbance> disturbances;

  // Of questions to all machines.
  struct Question {
    Clock::duration when{0};
    std::size_t agent = 0;  ///< modulo the number of agents
    std::string options;
    bool is_for_stop = false;
  };
  std::vector<Question> questions;
  double mute = 0;                 ///< an agent does not answer one
  std::size_t max_answer = 0;      ///< bytes
  Clock::duration max_reading{0};  ///< until an agent answers
  double waited = 0;               ///< a worker that fails says that it waited for others
  std::size_t bandwidth = 0;       ///< of each link, bytes per second; 0: unlimited

  [[nodiscard]] rendezvous::Settings settings() const;
  /// While the job is not over there is a message other than PING and PONG at least this often.
  [[nodiscard]] Clock::duration max_wait() const;
  /// Virtual time limit of the job.
  [[nodiscard]] Clock::duration bound() const;
  [[nodiscard]] std::string describe() const;
};

/// Mostly small jobs, some of dozens of agents.
[[nodiscard]] Scenario draw_scenario(std::uint64_t seed);

}  // namespace ddrun::test
