#include "failover_link.hpp"

#include <algorithm>
#include <utility>

#include "failover_world.hpp"

namespace ddrun::test {

SimulatedLink::SimulatedLink(FailoverWorld& world, SimulatedMember& owner, DialerOptions options, Callbacks callbacks)
    : world_(world), owner_(owner), callbacks_(std::move(callbacks)), dialer_(options) {}

void SimulatedLink::later(Clock::duration time, std::function<void()> what) {
  owner_.later(time, [weak = weak_from_this(), attempt = attempt_, what = std::move(what)] {
    if (const auto self = weak.lock(); self && self->attempt_ == attempt) what();
  });
}

void SimulatedLink::notify(std::function<void()> what) {
  owner_.later({}, [weak = weak_from_this(), what = std::move(what)] {
    if (const auto self = weak.lock()) what();
  });
}

void SimulatedLink::start() { dial(dialer_.begin(world_.timeline.now())); }

void SimulatedLink::dial(const DialStep& step) {
  for (const auto& why : step.retries) notify([this, why] { callbacks_.on_retry(why); });
  if (step.not_listening) notify([this] { callbacks_.on_not_listening(); });
  std::visit([this](const auto& order) { carry_out(order); }, step.next);
  note_workers();
  ++timer_;
  if (step.due == Deadline::max() || is_over_) return;
  later(std::max(step.due - world_.timeline.now(), Clock::duration{0}), [this, timer = timer_] {
    if (timer == timer_) dial(dialer_.timed_out(world_.timeline.now()));
  });
}

void SimulatedLink::carry_out(const dial::LookUp& order) { throw Violation("it looks up " + order.host); }

void SimulatedLink::carry_out(const dial::Connect& order) {
  end_attempt();
  world_.connect(owner_, order.to, [this, weak = weak_from_this(), attempt = attempt_](LinkId link, bool refused) {
    if (const auto self = weak.lock()) {
      owner_.turn([weak, attempt, link, refused] {
        if (const auto alive = weak.lock()) alive->connected(attempt, link, refused);
      });
    }
  });
}

void SimulatedLink::connected(std::uint64_t attempt, LinkId link, bool refused) {
  if (attempt != attempt_) {
    if (link != 0) world_.close_by_agent(link);
    return;
  }
  const auto now = world_.timeline.now();
  if (link == 0) return dial(refused ? dialer_.refused(now) : dialer_.unreachable("no answer", now));
  id_ = link;
  dial(dialer_.connected(now));
}

void SimulatedLink::carry_out(const dial::Greet& /*order*/) {
  const auto now = world_.timeline.now();
  dialer_.heard(now);
  dial(*dialer_.shook_hands(HandshakeState::done, protocol_version, now));
}

void SimulatedLink::carry_out(const FromAgent& greeting) { world_.to_coordinator(id_, greeting); }

/// Closing the connection of a member would report that its workers have ended: it stays open, unused.
void SimulatedLink::carry_out(const LinkLoss& loss) {
  if (dialer_.is_member()) order_stop(loss.grace());
  if (!dialer_.is_joined()) end_attempt();
  ++attempt_;
  is_over_ = true;
  if (loss.unreachable) world_.on_silence(owner_, id_);
  notify([this, loss] { callbacks_.on_lost(loss); });
}

void SimulatedLink::end_attempt() {
  ++attempt_;
  if (id_ != 0) world_.close_by_agent(std::exchange(id_, 0));
}

void SimulatedLink::hang() {
  end_attempt();
  is_over_ = true;
}

void SimulatedLink::send(const FromAgent& message) {
  const auto* const answer = std::get_if<Stacks>(&message);
  if (answer == nullptr) return send_now(message);
  answers_.add(*answer);
  send_answers();
}

void SimulatedLink::send_answers() {
  if (!dialer_.is_joined() || is_over_) return;
  while (const auto part = answers_.next()) send_now(*part);
}

void SimulatedLink::send_now(const FromAgent& message) {
  if (!dialer_.is_joined() || is_over_) return;
  if (std::holds_alternative<Stopped>(message)) {
    dialer_.workers_ended();
    note_workers();
  }
  answers_.note_sent(message);
  world_.to_coordinator(id_, message);
}

void SimulatedLink::receives(const FromCoordinator& message) {
  if (is_over_) return;
  const auto now = world_.timeline.now();
  dialer_.heard(now);
  if (const auto* ping = std::get_if<Ping>(&message)) {
    if (!dialer_.is_joined()) return;
    if (const auto step = dialer_.pinged(*ping, now)) dial(*step);
    note_workers();
    if (is_over_) return;
    answers_.confirm(*ping);
    send_answers();
    world_.to_coordinator(id_, Pong{ping->number});
    return;
  }
  const auto attempt = attempt_;
  if (const auto step = dialer_.received(message, now)) dial(*step);
  if (attempt != attempt_) return;
  notify([this, message] { callbacks_.on_message(message); });
  if (const auto grace = ordered_stop(message)) order_stop(*grace);
}

void SimulatedLink::note_workers() {
  owner_.note_workers(dialer_.has_workers(), dialer_.loses_sight_at(), dialer_.heartbeat());
}

void SimulatedLink::order_stop(Grace grace) {
  const auto now = world_.timeline.now();
  if (grace == Grace::lost_sight) owner_.kill_workers_after(std::min(now, dialer_.loses_sight_at().value_or(now)));
}

void SimulatedLink::disconnected() {
  if (!is_over_) dial(dialer_.hung_up("connection closed", true, world_.timeline.now()));
}

}  // namespace ddrun::test
