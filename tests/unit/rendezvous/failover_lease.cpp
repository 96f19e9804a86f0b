#include "failover_lease.hpp"

#include <algorithm>
#include <utility>

#include "ddrun/base/text.hpp"
#include "order_marks.hpp"
#include "simulation_invariants.hpp"

namespace ddrun::test {

namespace {

using std::chrono::milliseconds;
namespace from_program = lease::from_program;

/// Of the program for the engine.
constexpr milliseconds response_timeout{1'000};

}  // namespace

SimulatedLease::SimulatedLease(Place place, lease::Listener listener)
    : place_(std::move(place)),
      listener_(std::move(listener)),
      candidate_({"job", place_.scenario.ttl, place_.scenario.agents, mark_steps("candidate")}, "program",
                 static_cast<std::uint32_t>(place_.random.below(1'000'000))),
      slow_since_(place_.timeline.now()),
      local_then_(std::chrono::hours(1)) {}

// ---- the owner

void SimulatedLease::resign(std::function<void()> done) {
  if (!done) return step(lease::event::WantResign{});
  calls_[++last_call_] = [done = std::move(done)](bool /*given_back*/) { done(); };
  step(lease::event::WantResign{last_call_});
}

void SimulatedLease::record_verdict(const std::string& text, std::function<void(bool)> done) {
  calls_[++last_call_] = std::move(done);
  step(lease::event::Record{text, last_call_});
}

void SimulatedLease::close(bool gives_back) {
  if (std::exchange(closed_, true)) return;
  if (gives_back) request([this] { place_.engine.resign(place_.id); });
}

void SimulatedLease::step(const lease::Event& event) {
  if (closed_) return;
  const auto until = candidate_.held_until();
  const auto actions = candidate_.step(event, local_now());
  if (candidate_.held_until() > until) place_.on_lead();
  for (const auto& action : actions) carry_out(action);
  arm_timer();
}

void SimulatedLease::carry_out(const lease::Action& action) {
  const auto post = [&](std::function<void()> what) {
    place_.on_owners_thread([weak = weak_from_this(), what = std::move(what)] {
      if (const auto self = weak.lock(); self && !self->closed_) what();
    });
  };
  if (const auto* kill = std::get_if<lease::action::Kill>(&action)) throw Violation(concat("kills its ", kill->why));
  if (const auto* write = std::get_if<lease::action::Write>(&action)) {
    std::visit([this](const auto& line) { on(line); }, write->line);
  }
  if (const auto* what = std::get_if<lease::Tell>(&action)) post([this, what = *what] { listener_(what); });
  if (const auto* call = std::get_if<lease::action::Complete>(&action)) {
    post([done = calls_.extract(call->id).mapped(), right = call->result.has_value()] { done(right); });
  }
}

// ---- its clock

Clock::duration SimulatedLease::held_for() const {
  return std::chrono::duration_cast<Clock::duration>(candidate_.held_until() - local_now());
}

lease::FenceClock::time_point SimulatedLease::local_now() const {
  return local_then_ +
         std::chrono::duration_cast<lease::FenceClock::duration>((place_.timeline.now() - slow_since_) / slowness_);
}

void SimulatedLease::slow_down(double factor) {
  if (factor <= slowness_) return;
  local_then_ = local_now();
  slow_since_ = place_.timeline.now();
  slowness_ = factor;
}

void SimulatedLease::arm_timer() {
  const auto next = candidate_.next_deadline();
  if (!next || (armed_ && *armed_ <= *next)) return;
  armed_ = next;
  const auto time = std::chrono::duration_cast<Clock::duration>((*next - local_now()) * slowness_);
  place_.timeline.in(std::max(time, Clock::duration{0}) + Clock::duration{1}, [weak = weak_from_this(), at = *next] {
    const auto self = weak.lock();
    if (!self || self->armed_ != at) return;
    self->place_.on_thread([weak] {
      const auto alive = weak.lock();
      if (!alive) return;
      alive->armed_.reset();
      alive->step(lease::event::TimeIsUp{});
    });
  });
}

// ---- the program

Clock::duration SimulatedLease::draw_latency() {
  const FailoverScenario& scenario = place_.scenario;
  if (place_.random.chance(scenario.late_requests)) return place_.random.time({}, Clock::duration(scenario.ttl));
  return place_.random.time(Clock::duration{1}, scenario.max_latency / (scenario.quick_lease ? 10 : 1));
}

/// The engine acts on it even if this process is suspended, or ends, meanwhile.
void SimulatedLease::request(std::function<void()> at_engine) {
  if (place_.random.chance(place_.scenario.lost_requests)) return;
  last_request_ = std::max(last_request_, place_.timeline.now() + draw_latency());
  place_.timeline.at(last_request_, [self = shared_from_this(), at_engine = std::move(at_engine)] {
    if (self->place_.engine.is_available() && self->place_.reaches_engine()) at_engine();
  });
}

void SimulatedLease::respond(std::function<void()> on_response) {
  if (place_.random.chance(place_.scenario.lost_requests)) return;
  last_response_ = std::max(last_response_, place_.timeline.now() + draw_latency());
  place_.timeline.at(last_response_, [self = shared_from_this(), on_response = std::move(on_response)] {
    if (!self->closed_ && self->place_.reaches_engine()) on_response();
  });
}

std::function<bool()> SimulatedLease::answer_once(std::function<void()> after_timeout) {
  const auto answered = std::make_shared<bool>(false);
  place_.timeline.in(response_timeout, [weak = weak_from_this(), answered, after_timeout = std::move(after_timeout)] {
    if (const auto self = weak.lock(); self && !std::exchange(*answered, true)) after_timeout();
  });
  return [answered] { return !std::exchange(*answered, true); };
}

void SimulatedLease::on(const lease::to_program::Tick& tick) {
  last_tick_ = tick.number;
  const auto is_first = answer_once([this, tick] { print(from_program::Done{tick.number}); });
  request([this, tick, is_first, campaigning = campaigning_, resigns = resigns_read_] {
    // The engine may not have got the request of an earlier `resign`.
    if (resigns_done_ < resigns) place_.engine.resign(place_.id);
    resigns_done_ = std::max(resigns_done_, resigns);
    const Engine::State state = place_.engine.tick(place_.id, campaigning.has_value(), campaigning.value_or(""));
    respond([this, tick, is_first, state] {
      print_state(state, tick.number);
      if (is_first()) print(from_program::Done{tick.number});
    });
  });
}

void SimulatedLease::on(const lease::to_program::Depose& depose) {
  request([this, term = depose.term] { place_.engine.depose(place_.id, term); });
}

void SimulatedLease::on(const lease::to_program::Resign& /*resign*/) {
  campaigning_.reset();
  const auto is_first = answer_once([this] { print(from_program::Resigned{}); });
  request([this, is_first, resigns = ++resigns_read_] {
    if (resigns_done_ < resigns) place_.engine.resign(place_.id);
    resigns_done_ = std::max(resigns_done_, resigns);
    respond([this, is_first] {
      if (is_first()) print(from_program::Resigned{});
    });
  });
}

void SimulatedLease::on(const lease::to_program::Verdict& verdict) {
  const auto is_first = answer_once([this] { print(from_program::Refused{"no answer"}); });
  request([this, is_first, text = verdict.text] {
    const bool recorded = place_.engine.record(place_.id, text);
    respond([this, is_first, recorded] {
      if (!is_first()) return;
      if (recorded) print(from_program::Recorded{});
      else print(from_program::Refused{"no"});
    });
  });
}

/// It watches the engine.
void SimulatedLease::changed() {
  if (closed_ || !place_.engine.is_available() || !place_.reaches_engine()) return;
  respond([this, state = place_.engine.state()] { print_state(state, std::nullopt); });
}

void SimulatedLease::print_state(const Engine::State& state, std::optional<std::uint64_t> tick) {
  if (state.verdict) print(from_program::Verdict{*state.verdict});
  if (state.holder == 0) return print(from_program::None{});
  if (state.holder != place_.id) return print(from_program::Other{state.term, state.address});
  if (tick && *tick + lease::tick_window > last_tick_) print(from_program::Mine{state.term, *tick});
}

void SimulatedLease::print(const from_program::Line& line) {
  place_.on_thread([weak = weak_from_this(), line] {
    if (const auto self = weak.lock()) self->step(line);
  });
}

}  // namespace ddrun::test
