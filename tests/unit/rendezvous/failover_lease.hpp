#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "ddrun/lease/lease.hpp"
#include "failover_engine.hpp"
#include "failover_scenario.hpp"

namespace ddrun::test {

/// One machine's candidacy: the behaviour of lib/lease/src/program_lease.cpp together with its program. Requests and
/// responses may be lost or late, but are not reordered.
class SimulatedLease : public std::enable_shared_from_this<SimulatedLease> {
 public:
  struct Place {
    Timeline& timeline;
    Random& random;
    Engine& engine;
    const FailoverScenario& scenario;
    std::uint64_t id = 0;
    std::function<bool()> reaches_engine;
    /// On the lease's thread: at once, or once the process resumes.
    std::function<void(std::function<void()>)> on_thread;
    /// The same, on the owner's thread.
    std::function<void(std::function<void()>)> on_owners_thread;
    std::function<void()> on_lead;  ///< for invariants
  };
  SimulatedLease(Place place, lease::Callbacks callbacks);

  void start();
  void campaign(const std::string& address);
  void resign(std::function<void()> done);
  void depose(rendezvous::Term term);
  void record_verdict(const std::string& text, std::function<void(bool)> done);
  [[nodiscard]] bool is_leader() const { return term_ != 0 && place_.timeline.now() < until_; }
  /// The engine's state has changed.
  void changed();
  /// No callback follows. `gives_back`: the program does so at the end of its stdin.
  void close(bool gives_back);
  void slow_down(double factor) { slowness_ = std::max(slowness_, factor); }

 private:
  void tick();
  void tick_now();
  void request(std::function<void()> at_engine);
  void respond(std::function<void()> on_response);
  void on_state(const Engine::State& state, std::optional<std::uint64_t> tick);
  void held(rendezvous::Term term, std::uint64_t tick);
  void on_verdict_known(const std::string& text);
  void try_to_record();
  void watch_fence();
  void lost();
  void step_down();
  void post_leader(const lease::Leader& leader);
  void post_no_leader();
  [[nodiscard]] Clock::duration draw_latency();
  template <class Action>
  void later(Clock::duration time, Action action);

  struct Tick {
    std::uint64_t number = 0;
    Clock::time_point sent;
  };
  Place place_;
  lease::Callbacks callbacks_;
  bool closed_ = false;
  std::string address_;
  bool candidate_ = false;
  rendezvous::Term term_ = 0, highest_term_ = 0, previous_term_ = 0;
  Clock::time_point until_;
  double slowness_ = 1;
  std::deque<Tick> ticks_;
  std::uint64_t last_tick_ = 0;
  std::uint64_t awaited_tick_ = 0;
  std::uint64_t resigned_at_tick_ = 0;
  Clock::time_point last_ask_, last_answer_;
  std::optional<lease::Leader> last_leader_;
  std::optional<std::string> verdict_;
  std::string to_record_;
  std::function<void(bool)> recorded_;
};

}  // namespace ddrun::test
