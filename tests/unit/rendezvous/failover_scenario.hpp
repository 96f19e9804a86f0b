#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ddrun/rendezvous/messages.hpp"
#include "simulation_timeline.hpp"

namespace ddrun::test {

inline constexpr std::chrono::milliseconds heartbeat_bound{3'500};  ///< with the moment to be heard

/// A promise that is broken on purpose: the simulation has to notice.
enum class Break {
  none,
  claims_ignored,             ///< JOIN says nothing of the last round
  round_not_carried,          ///< a claim says all but the number of its round
  waits_for_nobody,           ///< the first claim counts for all members of its round
  comes_before_workers_stop,  ///< an agent joins the next coordinator while its workers still run
  hangs_up_too_soon,          ///< an agent ends the connection to its coordinator before its workers are stopped
  old_term_obeyed,            ///< agents follow a coordinator of a lower term than their own
  lease_counted_from_answer,  ///< and not from before it was asked for
  lease_not_asked,            ///< a coordinator acts without a look at its lease
  grace_without_lease,        ///< STOP for lost members lets workers take their time
  told_before_recorded,       ///< the verdict
  record_not_heeded,          ///< the job of a recorded verdict is led again
  silent_stand_down,          ///< members are not told
  silent_deposed,             ///< the lease is taken from a coordinator that was lost, whether its port refuses or not
  any_term_deposed,           ///< whatever the term of the one that refuses
};

struct BreakName {
  Break broken;
  const char* name;
};
inline constexpr BreakName all_breaks[] = {
    {Break::claims_ignored, "claims are ignored"},
    {Break::round_not_carried, "the number of the round is not carried over"},
    {Break::waits_for_nobody, "the first claim is enough"},
    {Break::comes_before_workers_stop, "an agent comes before its workers are stopped"},
    {Break::hangs_up_too_soon, "an agent hangs up before its workers are stopped"},
    {Break::old_term_obeyed, "an old term is obeyed"},
    {Break::lease_counted_from_answer, "the lease is counted from the answer"},
    {Break::lease_not_asked, "a coordinator without its lease goes on"},
    {Break::grace_without_lease, "workers have their grace without the lease"},
    {Break::told_before_recorded, "the verdict is told before it is recorded"},
    {Break::record_not_heeded, "the recorded verdict is not heeded"},
    {Break::silent_stand_down, "a coordinator stands down without telling"},
    {Break::silent_deposed, "a coordinator that is only silent is deposed"},
    {Break::any_term_deposed, "who is deposed is not told by the term"},
};

/// What goes on in one simulated job whose machines may all lead it, as drawn from a seed.
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
  Clock::duration longest_run{0};  ///< of a worker
  Clock::duration slowest_message{0};
  Clock::duration handling{0};  ///< that a coordinator needs for one JOIN, one after the other
  double failing = 0;           ///< a node's workers fail in a round
  double lost_requests = 0;     ///< to the engine, and answers of it
  double late_requests = 0;     ///< by up to a time to live
  bool quick_lease = false;     ///< asked for at once where it is wanted, and messages of it come ten times as fast

  enum class Kind {
    process_killed,  ///< the agent; its guard ends the workers, and the lease's program may give the lease back
    machine_killed,
    stands_still,  ///< the agent is stopped, and goes on; its workers run
    cut_off,       ///< the machine, from the others and the engine
    cut_apart,     ///< some machines from the rest, with the engine on one side
    cut_from_engine,
    preempted,  ///< SIGTERM
    engine_away,
    slow_clock,  ///< of the machine: less than the lease's margin
    comes_back,  ///< the machine, with an agent that knows nothing
    newcomer,
  };
  struct Fault {
    Kind kind = Kind::process_killed;
    Clock::duration when{0};
    bool of_leader = false;   ///< of the machine that leads then, if one does
    std::size_t machine = 0;  ///< otherwise; modulo the machines that there are
    Clock::duration time{0};
  };
  std::vector<Fault> faults;
  Break broken = Break::none;

  [[nodiscard]] rendezvous::Settings settings() const;
  /// From when a coordinator that leads has enough members until it begins a round, at the most.
  [[nodiscard]] Clock::duration longest_gathering() const;
  /// Virtual time after which everything must be over.
  [[nodiscard]] Clock::duration bound() const;
  [[nodiscard]] std::string describe() const;
};

[[nodiscard]] FailoverScenario draw_failover(std::uint64_t seed);
/// One round of so many agents, whose coordinator's process is killed once all run.
[[nodiscard]] FailoverScenario large_failover(int agents);

}  // namespace ddrun::test
