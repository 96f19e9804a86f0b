#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "ddrun/lease/lease.hpp"
#include "failover_engine.hpp"
#include "failover_scenario.hpp"

namespace ddrun::test {

/// One machine's candidacy in virtual time: lease::Candidate with a simulated program. The program's requests to the
/// engine and their responses may be lost or late, but are not reordered.
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
  SimulatedLease(Place place, lease::Listener listener);

  void start() { step(lease::event::TimeIsUp{}); }
  void campaign(const std::string& address) { step(lease::event::WantLead{address}); }
  void resign(std::function<void()> done);
  void depose(rendezvous::Term term) { step(lease::event::Depose{term}); }
  void record_verdict(const std::string& text, std::function<void(bool)> done);
  [[nodiscard]] bool is_leader() const { return !closed_ && local_now() < candidate_.held_until(); }
  /// How long it is still held, by the machine's clock.
  [[nodiscard]] Clock::duration held_for() const;
  /// The engine's state has changed.
  void changed();
  /// The listener is not called again. `gives_back`: the program does so at the end of its stdin.
  void close(bool gives_back);
  /// The machine's clock is slower by this factor from now on.
  void slow_down(double factor);

 private:
  void step(const lease::Event& event);
  void carry_out(const lease::Action& action);
  void arm_timer();
  [[nodiscard]] lease::FenceClock::time_point local_now() const;

  // The program. Each line has one answer.
  void on(const lease::to_program::Job& /*job*/) {}
  void on(const lease::to_program::Campaign& campaign) { campaigning_ = campaign.address; }
  void on(const lease::to_program::Tick& tick);
  void on(const lease::to_program::Depose& depose);
  void on(const lease::to_program::Resign& resign);
  void on(const lease::to_program::Verdict& verdict);
  void print(const lease::from_program::Line& line);
  void print_state(const Engine::State& state, std::optional<std::uint64_t> tick);
  void request(std::function<void()> at_engine);
  void respond(std::function<void()> on_response);
  /// Whether the caller is the first to answer. `after_timeout` is called where none has by then.
  [[nodiscard]] std::function<bool()> answer_once(std::function<void()> after_timeout);
  [[nodiscard]] Clock::duration draw_latency();

  Place place_;
  lease::Listener listener_;
  lease::Candidate candidate_;
  bool closed_ = false;
  std::map<std::uint64_t, std::function<void(bool)>> calls_;
  std::uint64_t last_call_ = 0;
  std::optional<lease::FenceClock::time_point> armed_;
  double slowness_ = 1;
  Clock::time_point slow_since_;
  lease::FenceClock::time_point local_then_;  ///< the local time at slow_since_

  std::optional<std::string> campaigning_;  ///< with this address
  std::uint64_t last_tick_ = 0;
  int resigns_read_ = 0, resigns_done_ = 0;
  Clock::time_point last_request_, last_response_;
};

}  // namespace ddrun::test
