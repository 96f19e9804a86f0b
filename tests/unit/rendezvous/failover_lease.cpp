#include "failover_lease.hpp"

#include <algorithm>
#include <utility>

#include "ddrun/lease/fence.hpp"

namespace ddrun::test {

namespace {

using std::chrono::milliseconds;

constexpr std::size_t tick_window = 7;
constexpr milliseconds done_timeout{1'000};
constexpr milliseconds record_interval{300};
constexpr Milliseconds max_tick_interval{1'000};

}  // namespace

SimulatedLease::SimulatedLease(Place place, lease::Callbacks callbacks)
    : place_(std::move(place)), callbacks_(std::move(callbacks)) {}

template <class Action>
void SimulatedLease::later(Clock::duration time, Action action) {
  place_.timeline.in(time, [weak = weak_from_this(), action = std::move(action)] {
    const auto self = weak.lock();
    if (!self || self->closed_) return;
    self->place_.on_thread([weak, action] {
      if (const auto alive = weak.lock(); alive && !alive->closed_) action();
    });
  });
}

void SimulatedLease::start() {
  later(place_.random.time({}, milliseconds(20)), [this] { tick(); });
}

void SimulatedLease::tick() {
  const Milliseconds between = std::min(place_.scenario.ttl / 4, max_tick_interval);
  later(place_.random.time(between / 2, between * 3 / 2), [this] { tick(); });
  if (awaited_tick_ == 0) tick_now();
}

void SimulatedLease::tick_now() {
  awaited_tick_ = ++last_tick_;
  ticks_.push_back({last_tick_, place_.timeline.now()});
  if (ticks_.size() > tick_window) ticks_.pop_front();
  later(done_timeout, [this, number = last_tick_] {
    if (awaited_tick_ == number) awaited_tick_ = 0;
  });
  request([this, number = last_tick_, campaigns = candidate_, given_up = previous_term_, address = address_] {
    // The program has read it, even if the engine has not.
    if (place_.engine.state().term <= given_up) place_.engine.resign(place_.id);
    const Engine::State state = place_.engine.tick(place_.id, campaigns, address);
    respond([this, number, state] {
      if (awaited_tick_ == number) awaited_tick_ = 0;
      on_state(state, number);
    });
  });
}

Clock::duration SimulatedLease::draw_latency() {
  const FailoverScenario& scenario = place_.scenario;
  if (place_.random.chance(scenario.late_requests)) return place_.random.time({}, Clock::duration(scenario.ttl));
  return place_.random.time(Clock::duration{1}, scenario.max_latency / (scenario.quick_lease ? 10 : 1));
}

/// The engine acts on it even if this process is suspended, or ends, meanwhile.
void SimulatedLease::request(std::function<void()> at_engine) {
  if (place_.random.chance(place_.scenario.lost_requests)) return;
  last_ask_ = std::max(last_ask_, place_.timeline.now() + draw_latency());
  place_.timeline.at(last_ask_, [self = shared_from_this(), at_engine = std::move(at_engine)] {
    if (self->place_.engine.is_available() && self->place_.reaches_engine()) at_engine();
  });
}

void SimulatedLease::respond(std::function<void()> on_response) {
  if (place_.random.chance(place_.scenario.lost_requests)) return;
  last_answer_ = std::max(last_answer_, place_.timeline.now() + draw_latency());
  later(last_answer_ - place_.timeline.now(), [this, on_response = std::move(on_response)] {
    if (place_.reaches_engine()) on_response();
  });
}

void SimulatedLease::changed() {
  if (closed_ || !place_.engine.is_available() || !place_.reaches_engine()) return;
  respond([this, state = place_.engine.state()] { on_state(state, std::nullopt); });
}

void SimulatedLease::on_state(const Engine::State& state, std::optional<std::uint64_t> tick) {
  if (state.verdict) on_verdict_known(*state.verdict);
  if (state.holder == place_.id) {
    if (tick) held(state.term, *tick);
    return;
  }
  if (term_ != 0) lost();
  if (state.holder == 0 || state.term == previous_term_ || state.term < highest_term_) return post_no_leader();
  highest_term_ = state.term;
  post_leader({state.term, state.address, false});
}

void SimulatedLease::held(rendezvous::Term term, std::uint64_t number) {
  const auto tick = std::find_if(ticks_.begin(), ticks_.end(), [&](const Tick& t) { return t.number == number; });
  if (tick == ticks_.end()) return;
  // Given up, but the program has not read that yet.
  if (!candidate_ || number <= resigned_at_tick_ || (term_ == 0 && term <= highest_term_)) return;
  if (term_ != 0 && term != term_) return lost();
  const Milliseconds ttl = place_.scenario.ttl;
  const Clock::duration time =
      std::chrono::duration_cast<Clock::duration>((ttl - lease::fence_margin(ttl)) * slowness_);
  until_ = std::max(until_, tick->sent + time);
  term_ = highest_term_ = term;
  if (!is_leader()) return lost();
  place_.on_lead();
  watch_fence();
  post_leader({term, address_, true});
}

void SimulatedLease::on_verdict_known(const std::string& text) {
  if (verdict_ == text) return;
  verdict_ = text;
  place_.on_owners_thread([weak = weak_from_this(), text] {
    if (const auto self = weak.lock(); self && !self->closed_) self->callbacks_.on_verdict(text);
  });
}

void SimulatedLease::watch_fence() {
  later(until_ - place_.timeline.now(), [this, term = term_] {
    if (term_ == term && term_ != 0 && !is_leader()) lost();
  });
}

void SimulatedLease::lost() {
  step_down();
  last_leader_.reset();
  if (const auto done = std::exchange(recorded_, nullptr)) place_.on_owners_thread([done] { done(false); });
  place_.on_owners_thread([weak = weak_from_this()] {
    if (const auto self = weak.lock(); self && !self->closed_) self->callbacks_.on_lost("");
  });
  // The program gives up whatever it holds; the next lease has a new term.
  resigned_at_tick_ = last_tick_;
  request([this] { place_.engine.resign(place_.id); });
}

void SimulatedLease::step_down() {
  if (term_ != 0) previous_term_ = term_;
  term_ = 0;
  until_ = {};
  if (last_leader_ && last_leader_->is_self) last_leader_.reset();
}

void SimulatedLease::campaign(const std::string& address) {
  const bool is_news = !std::exchange(candidate_, true) || address_ != address;
  address_ = address;
  if (term_ != 0) post_leader({term_, address_, true});
  if (is_news && place_.scenario.quick_lease) tick_now();
}

void SimulatedLease::resign(std::function<void()> done) {
  candidate_ = false;
  if (const auto recorded = std::exchange(recorded_, nullptr)) place_.on_owners_thread([recorded] { recorded(false); });
  step_down();
  resigned_at_tick_ = last_tick_;
  request([this, done] {
    place_.engine.resign(place_.id);
    respond([this, done] {
      if (done) place_.on_owners_thread(done);
    });
  });
}

void SimulatedLease::depose(rendezvous::Term term) {
  if (term_ != 0) return;
  request([this, term] { place_.engine.depose(place_.id, term); });
}

void SimulatedLease::record_verdict(const std::string& text, std::function<void(bool)> done) {
  if (!is_leader() || recorded_ || verdict_) return place_.on_owners_thread([done] { done(false); });
  to_record_ = text;
  recorded_ = std::move(done);
  try_to_record();
}

/// Repeated as long as the lease is held, as the program does.
void SimulatedLease::try_to_record() {
  if (!recorded_) return;
  request([this, text = to_record_] {
    const bool recorded = place_.engine.record(place_.id, text);
    respond([this, text, recorded] {
      if (!recorded_) return;
      if (recorded) on_verdict_known(text);
      const auto done = std::exchange(recorded_, nullptr);
      place_.on_owners_thread([done, recorded] { done(recorded); });
    });
  });
  later(record_interval, [this] { try_to_record(); });
}

void SimulatedLease::close(bool gives_back) {
  if (std::exchange(closed_, true)) return;
  term_ = 0;
  recorded_ = nullptr;
  if (gives_back) request([this] { place_.engine.resign(place_.id); });
}

void SimulatedLease::post_leader(const lease::Leader& leader) {
  if (last_leader_ == leader) return;
  last_leader_ = leader;
  place_.on_owners_thread([weak = weak_from_this(), leader] {
    if (const auto self = weak.lock(); self && !self->closed_) self->callbacks_.on_leader(leader);
  });
}

void SimulatedLease::post_no_leader() {
  if (!last_leader_ || last_leader_->is_self) return;
  last_leader_.reset();
  place_.on_owners_thread([weak = weak_from_this()] {
    if (const auto self = weak.lock(); self && !self->closed_) self->callbacks_.on_no_leader();
  });
}

}  // namespace ddrun::test
