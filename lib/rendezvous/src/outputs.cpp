#include <utility>

#include "coordinator_state.hpp"
#include "ddrun/rendezvous/event_text.hpp"

namespace ddrun::rendezvous {

void Coordinator::State::send(LinkId link, FromCoordinator message) {
  outputs_.push_back(Output{link, std::move(message)});
}

void Coordinator::State::close(LinkId link) { outputs_.push_back(Output{link, std::nullopt}); }

void Coordinator::State::refuse(LinkId link, RefusalKind kind, const std::string& why) {
  send(link, Refused{kind, why});
  close(link);
}

std::vector<Coordinator::Output> Coordinator::State::take_outputs() { return std::exchange(outputs_, {}); }

std::uint32_t Coordinator::State::ping(LinkId link) {
  if (++pings_ == 0) ++pings_;
  send(link, Ping{pings_});
  return pings_;
}

std::optional<LinkId> Coordinator::State::observer() const {
  if (const auto own = members_.coordinators_own_link()) return own;
  if (round_links_.empty()) return std::nullopt;
  const Seat* first = members_.find(round_links_.front());
  if (first == nullptr) return std::nullopt;
  return first->link;
}

void Coordinator::State::event(std::string json) {
  if (const auto to = observer()) {
    flush_events();
    send(*to, EventLine{std::move(json)});
    return;
  }
  early_events_.push_back(std::move(json));
  const std::size_t most = members_.size() + 100;
  while (early_events_.size() > most) early_events_.pop_front();
}

void Coordinator::State::flush_events() {
  const auto to = observer();
  if (!to) return;
  for (auto& json : std::exchange(early_events_, {})) send(*to, EventLine{std::move(json)});
}

}  // namespace ddrun::rendezvous
