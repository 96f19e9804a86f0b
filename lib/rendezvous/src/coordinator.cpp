#include "ddrun/rendezvous/coordinator.hpp"

#include <utility>

#include "coordinator_state.hpp"

namespace ddrun::rendezvous {

Coordinator::State::State(CoordinatorOptions options)
    : options_(std::move(options)), heartbeat_(options_.heartbeat_interval, options_.heartbeat_misses) {}

Coordinator::Coordinator(CoordinatorOptions options) : state_(std::make_unique<State>(std::move(options))) {}
Coordinator::~Coordinator() = default;
Coordinator::Coordinator(Coordinator&&) noexcept = default;
Coordinator& Coordinator::operator=(Coordinator&&) noexcept = default;

void Coordinator::join(LinkId link, const Join& join, const LinkFacts& facts, Clock::time_point now) {
  state_->now = now;
  state_->join(link, join, facts);
}

void Coordinator::receive(LinkId link, const FromAgent& message, Clock::time_point now) {
  state_->now = now;
  state_->receive(link, message);
}

void Coordinator::lost(LinkId link, const std::string& how, Clock::time_point now) {
  state_->now = now;
  state_->lost(link, how);
}

void Coordinator::tick(Clock::time_point now) {
  state_->now = now;
  state_->tick();
}

std::vector<Coordinator::Output> Coordinator::take_outputs() { return state_->take_outputs(); }
std::optional<Clock::time_point> Coordinator::next_deadline() const { return state_->next_deadline(); }
bool Coordinator::done() const { return state_->done(); }
bool Coordinator::waits_for_latecomers() const { return state_->waits_for_latecomers(); }

std::vector<Coordinator::MemberView> Coordinator::members() const {
  std::vector<MemberView> views;
  views.reserve(state_->members().size());
  for (const auto& [link, seat] : state_->members().all()) {
    views.push_back(
        MemberView{link, seat.host, seat.in_round ? seat.node_rank : -1, !seat.in_round && seat.told_spare});
  }
  return views;
}

Round Coordinator::round() const { return state_->memory().round; }
int Coordinator::restarts() const { return state_->memory().budget.used(); }
std::optional<VerdictMessage> Coordinator::verdict() const { return state_->memory().verdict; }

}  // namespace ddrun::rendezvous
