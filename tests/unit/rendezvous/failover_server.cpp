#include "failover_server.hpp"

#include <utility>

#include "ddrun/base/text.hpp"
#include "failover_invariants.hpp"
#include "simulated_survey.hpp"
#include "simulation_invariants.hpp"

namespace ddrun::test {

using namespace ddrun::rendezvous;

namespace {

/// How long it may be suspended without taking note of it, at several times.
constexpr std::chrono::seconds max_late{10};

}  // namespace

SimulatedServer::SimulatedServer(Place place, CoordinatorOptions options)
    : place_(std::move(place)),
      coordinator_(std::move(options)),
      survey_(coordinator_, place_.scenario.faults.empty() ? Clock::duration{} : max_late) {}

void SimulatedServer::acts(const std::function<void()>& what) {
  if (closed_) return;
  check_lease();
  what();
  apply_outputs();
}

void SimulatedServer::check_lease() {
  if (place_.holds_lease()) return;
  suspended_ = true;
  coordinator_.suspend(now());
  apply_outputs();
}

void SimulatedServer::apply_outputs() {
  for (auto& output : coordinator_.take_outputs()) {
    quiet_ = quiet_ && output.message && std::holds_alternative<Ping>(*output.message);
    if (links_.count(output.link) == 0) continue;
    if (!output.message) {
      links_.erase(output.link);
      place_.close_link(output.link);
      continue;
    }
    if (auto* ping = std::get_if<Ping>(&*output.message)) ping->received = received_[output.link];
    survey_.sends(output.link, *output.message, now());
    place_.invariants.on_send(*this, output.link, *output.message);
    place_.send(output.link, *output.message);
  }
  if (const auto verdict = coordinator_.take_verdict_to_record()) place_.on_verdict(*verdict);
  if (coordinator_.stepped_down() && !std::exchange(step_down_reported_, true)) {
    place_.note([] { return std::string("stood down"); });
    place_.on_stepped_down();
  }
  survey_.after_step(now());
  place_.invariants.after_step(*this, std::exchange(quiet_, true));
  check_done();
  schedule_tick();
}

void SimulatedServer::check_done() {
  if (!coordinator_.done() || std::exchange(done_reported_, true)) return;
  place_.on_done();
}

void SimulatedServer::schedule_tick() {
  const auto wanted = coordinator_.next_deadline();
  if (!wanted) return;
  const auto at = *wanted + stopped_time_;
  if (tick_at_ && *tick_at_ <= at) return;
  tick_at_ = at;
  place_.timeline.at(at, [weak = weak_from_this(), at] {
    const auto self = weak.lock();
    if (!self || self->tick_at_ != at) return;
    self->place_.on_thread([weak, at] {
      const auto alive = weak.lock();
      if (!alive || alive->tick_at_ != at) return;
      alive->tick_at_.reset();
      alive->acts([&] {
        const auto deadline = alive->coordinator_.next_deadline();
        if (!deadline || *deadline > alive->now()) return;
        alive->coordinator_.tick(alive->now());
        const auto next = alive->coordinator_.next_deadline();
        if (next && *next <= alive->now()) throw Violation("ticks without end");
      });
    });
  });
}

void SimulatedServer::receives(LinkId link, const FromAgent& message, const LinkAddresses& addresses) {
  const auto* join = std::get_if<Join>(&message);
  if (join == nullptr) {
    return acts([&] {
      if (links_.count(link) == 0) return;
      if (is_counted(message)) ++received_[link];
      survey_.receives(link, message, now());
      place_.invariants.receives(*this, link, message);
      quiet_ = quiet_ && std::holds_alternative<Pong>(message);
      coordinator_.receive(link, message, now());
    });
  }
  acts([&] {
    links_.insert(link);
    quiet_ = false;
    place_.invariants.on_join(*this, *join);
    place_.note([&] {
      return concat("hears JOIN of ", join->host, ", which claims round ", join->claim.round, " of term ",
                    join->claim.term);
    });
    coordinator_.join(link, *join, addresses, now());
  });
}

void SimulatedServer::disconnected(LinkId link, const std::string& how) {
  acts([&] {
    if (links_.erase(link) == 0) return;
    quiet_ = false;
    coordinator_.lost(link, how, now());
  });
}

void SimulatedServer::suspend() {
  acts([&] {
    suspended_ = true;
    coordinator_.suspend(now());
  });
}

void SimulatedServer::lead(Term term) {
  acts([&] {
    if (!place_.holds_lease()) return;
    suspended_ = quiet_ = false;
    coordinator_.lead(term, now());
  });
}

void SimulatedServer::step_down(const std::string& why) {
  acts([&] { coordinator_.step_down(why, now()); });
}

void SimulatedServer::recorded() {
  acts([&] { coordinator_.recorded(now()); });
}

std::set<LinkId> SimulatedServer::close() {
  closed_ = true;
  return std::exchange(links_, {});
}

}  // namespace ddrun::test
