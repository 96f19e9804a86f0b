#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ddrun/rendezvous/messages.hpp"
#include "ddrun/spec/launch_spec.hpp"
#include "simulation_timeline.hpp"

namespace ddrun::test {

inline constexpr std::chrono::milliseconds heartbeat_bound{3'500};  ///< with the margin

/// One simulated job whose machines may all lead it, drawn from a seed.
struct FailoverScenario {
  std::uint64_t seed = 0;
  int min_nodes = 1;
  int max_nodes = 1;
  int agents = 1;
  int max_restarts = 0;
  Milliseconds backoff{0};
  Milliseconds last_call{0};
  Milliseconds join_timeout{30'000};
  Milliseconds grace{0};
  std::optional<Milliseconds> fence;
  Milliseconds ttl{5'000};
  Milliseconds coordinator_timeout{30'000};
  Clock::duration arrival_spread{0};
  Clock::duration max_run{0};  ///< of a worker
  Clock::duration max_latency{0};
  double failing = 0;           ///< a node's workers fail in a round
  double lost_requests = 0;     ///< to the engine, and its responses
  double late_requests = 0;     ///< by up to a time to live
  std::uint32_t exchanges = 0;  ///< in each round, before its workers succeed; not drawn
  // Of questions to all machines.
  std::optional<Clock::duration> ask_interval;   ///< of each agent, on average; none: they do not ask
  std::size_t min_answer = 64, max_answer = 64;  ///< bytes
  double waited = 0;                             ///< a worker that fails says that it waited for others
  std::size_t bandwidth = 0;                     ///< of each link, bytes per second; 0: unlimited
  bool quick_lease = false;                      ///< requests to the engine, and its responses, are ten times as fast

  enum class Kind {
    process_killed,  ///< the agent; its guard ends the workers, and the lease's program may give the lease back
    machine_killed,
    suspended,      ///< the agent is suspended with all of ddrun, and resumes; its workers run
    stopped_alone,  ///< the agent alone
    all_stopped,    ///< the agents of all machines alone, at once
    cut_off,        ///< the machine, from the others and the engine
    cut_apart,      ///< some machines from the rest, with the engine on one side
    cut_from_engine,
    mute,       ///< nothing that the machine sends arrives at another one
    deaf,       ///< nothing that others send arrives at it
    preempted,  ///< SIGTERM
    engine_unavailable,
    slow_clock,         ///< of the machine: less than the lease's margin
    machine_restarted,  ///< the machine, with a new agent
    newcomer,
  };
  struct Fault {
    Kind kind = Kind::process_killed;
    Clock::duration when{0};
    bool of_leader = false;   ///< of the machine that leads at that time, if any
    std::size_t machine = 0;  ///< otherwise; modulo the number of machines
    Clock::duration time{0};
  };
  std::vector<Fault> faults;

  [[nodiscard]] rendezvous::Settings settings() const;
  [[nodiscard]] RendezvousSpec spec() const;
  /// The longest time from enough members under a leader to the next round.
  [[nodiscard]] Clock::duration max_gathering() const;
  /// Virtual time limit of the job.
  [[nodiscard]] Clock::duration bound() const;
  [[nodiscard]] std::string describe() const;
};

[[nodiscard]] FailoverScenario draw_failover(std::uint64_t seed);
/// A few undisturbed agents on slow links, with answers of 4 MiB and more.
[[nodiscard]] FailoverScenario draw_slow_answers(std::uint64_t seed);
/// One round of a few agents without restarts.
[[nodiscard]] FailoverScenario draw_preemption(std::uint64_t seed);

}  // namespace ddrun::test
