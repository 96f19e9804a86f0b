#include "simulation_network.hpp"

#include <algorithm>

#include "codec.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::test {

namespace {

/// Around a payload, with its tag.
constexpr std::size_t frame_bytes = 21;
constexpr std::size_t max_hashed_bytes = 1'000;

}  // namespace

LinkId Network::connect(std::size_t agent) {
  all_[++links_].agent = agent;
  return links_;
}

template <class Message>
std::size_t Network::note(LinkId link, const std::optional<Message>& message) {
  std::string payload;
  const int type = message ? encode(*message, payload) : std::is_same_v<Message, FromAgent> ? -1 : -2;
  const auto size = payload.size();
  payload.resize(std::min(size, max_hashed_bytes));
  for (const char c : concat(timeline_.now().time_since_epoch().count(), ' ', link, ' ', type, ' ', payload)) {
    hash_ = (hash_ ^ static_cast<std::uint8_t>(c)) * 0x100000001b3;
  }
  return size;
}

template <class Message>
void Network::enqueue(LinkId link, Direction<Message>& direction, std::optional<Message> message) {
  const std::size_t size = note(link, message);
  auto sent = timeline_.now();
  if (bandwidth != 0) {
    using Seconds = std::chrono::duration<double>;
    const Seconds time{static_cast<double>(size + frame_bytes) / static_cast<double>(bandwidth)};
    sent = std::max(sent, direction.busy_until) + std::chrono::duration_cast<Clock::duration>(time);
    direction.busy_until = sent;
  }
  auto arrives = sent + random_.time(Clock::duration{1}, max_latency);
  if (!direction.sent.empty()) arrives = std::max(arrives, direction.sent.back().first);
  direction.sent.emplace_back(arrives, std::move(message));
  timeline_.at(arrives, [this, link] {
    if constexpr (std::is_same_v<Message, FromAgent>) pump_up(link);
    else pump_down(link);
  });
}

void Network::send_to_coordinator(LinkId link, FromAgent message) {
  Link& at = all_.at(link);
  if (at.up_open) enqueue(link, at.up, std::optional<FromAgent>(std::move(message)));
}

void Network::send_to_agent(LinkId link, FromCoordinator message) {
  Link& at = all_.at(link);
  if (at.down_open && !at.coordinator_done) enqueue(link, at.down, std::optional<FromCoordinator>(std::move(message)));
}

void Network::close_by_agent(LinkId link) {
  Link& at = all_.at(link);
  at.down_open = false;
  if (at.up_open) enqueue(link, at.up, std::optional<FromAgent>());
}

void Network::close_by_coordinator(LinkId link) {
  Link& at = all_.at(link);
  at.coordinator_done = true;
  if (at.down_open) enqueue(link, at.down, std::optional<FromCoordinator>());
}

void Network::pump_up(LinkId link) {
  Link& at = all_.at(link);
  while (at.up_open && !at.up.sent.empty() && at.up.sent.front().first <= timeline_.now()) {
    if (timeline_.now() < at.up.stalled_until) {
      timeline_.at(at.up.stalled_until, [this, link] { pump_up(link); });
      return;
    }
    const auto message = std::move(at.up.sent.front().second);
    at.up.sent.pop_front();
    if (message) {
      // A link closed by the coordinator is not read any more; its loss may or may not be reported.
      if (!at.coordinator_done) handlers_.coordinator_receives(link, *message);
    } else {
      at.up_open = false;
      if (!at.coordinator_done || random_.chance(0.5)) handlers_.coordinator_disconnected(link, "closed by the agent");
    }
  }
}

void Network::pump_down(LinkId link) {
  Link& at = all_.at(link);
  while (at.down_open && !at.down.sent.empty() && at.down.sent.front().first <= timeline_.now()) {
    if (timeline_.now() < at.down.stalled_until) {
      timeline_.at(at.down.stalled_until, [this, link] { pump_down(link); });
      return;
    }
    const auto message = std::move(at.down.sent.front().second);
    at.down.sent.pop_front();
    if (message) {
      handlers_.agent_receives(at.agent, link, *message);
    } else {
      at.down_open = false;
      handlers_.agent_disconnected(at.agent, link);
    }
  }
}

void Network::break_link(LinkId link, bool coordinator_notices, bool agent_notices) {
  Link& at = all_.at(link);
  const bool up = at.up_open;
  const bool down = at.down_open;
  at.up_open = at.down_open = false;
  if (up && coordinator_notices) {
    timeline_.in(random_.time(Clock::duration{1}, max_latency),
                 [this, link] { handlers_.coordinator_disconnected(link, "connection reset by peer"); });
  }
  if (down && agent_notices) {
    timeline_.in(random_.time(Clock::duration{1}, max_latency),
                 [this, link] { handlers_.agent_disconnected(all_.at(link).agent, link); });
  }
}

void Network::stall(LinkId link, Clock::duration time, Stalls which) {
  Link& at = all_.at(link);
  const auto until = timeline_.now() + time;
  if (which != Stalls::to_agent) at.up.stalled_until = std::max(at.up.stalled_until, until);
  if (which != Stalls::to_coordinator) at.down.stalled_until = std::max(at.down.stalled_until, until);
}

}  // namespace ddrun::test
