#include "scripted_coordinator.hpp"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "ddrun/base/text.hpp"

namespace ddrun::test {

namespace {
std::mutex mutex;
std::vector<std::string> lines;
}  // namespace

static void log(const std::string& line) {
  const std::lock_guard lock(mutex);
  lines.push_back(line);
}

std::vector<std::string> coordinator_log() {
  const std::lock_guard lock(mutex);
  return lines;
}

void clear_coordinator_log() {
  const std::lock_guard lock(mutex);
  lines.clear();
}

bool coordinator_has_logged(const std::string& line) {
  const auto end = Clock::now() + std::chrono::seconds(20);
  while (Clock::now() < end) {
    const auto now = coordinator_log();
    if (std::find(now.begin(), now.end(), line) != now.end()) return true;
    ::usleep(1000);
  }
  return false;
}

}  // namespace ddrun::test

namespace ddrun::rendezvous {

using test::log;

class Coordinator::State {
 public:
  struct Peer {
    std::string host;
    Clock::time_point last_heard;
  };
  CoordinatorOptions options;
  std::map<LinkId, Peer> peers;
  std::vector<Output> outputs;
  std::optional<Clock::time_point> next_ping;
  std::uint32_t pings = 0;
  bool done = false;

  void send(LinkId link, FromCoordinator message) { outputs.push_back({link, std::move(message)}); }
};

Coordinator::Coordinator(CoordinatorOptions options) : state_(std::make_unique<State>()) {
  state_->options = std::move(options);
}
Coordinator::~Coordinator() = default;
Coordinator::Coordinator(Coordinator&&) noexcept = default;
Coordinator& Coordinator::operator=(Coordinator&&) noexcept = default;

void Coordinator::join(LinkId link, const Join& join, const LinkAddresses& addresses, Clock::time_point now) {
  if (join.job_id == "elsewhere" && state_->options.job_id != "elsewhere") {
    state_->send(link, Refused{RefusalKind::other_job, "another job is served here"});
    state_->outputs.push_back({link, std::nullopt});
    return;
  }
  log(concat("join ", join.host, " ", addresses.peer_address.text(), " ", state_->options.job_id));
  state_->peers[link] = {join.host, now};
  const auto& options = state_->options;
  Welcome welcome;
  welcome.coordinator_host = "coordinator's host";
  welcome.heartbeat_ms = static_cast<std::uint32_t>(options.heartbeat_interval.count());
  welcome.heartbeat_misses = static_cast<std::uint32_t>(options.heartbeat_misses);
  welcome.job_id = join.job_id;
  state_->send(link, welcome);
  if (join.job_id == "no-address") state_->send(link, Open{1, "127.0.0.1", 0, {}});
  if (join.job_id == "link-local") state_->send(link, Open{1, "fe80::1", 0, {"fe80::2"}});
  if (!state_->next_ping) state_->next_ping = now + options.heartbeat_interval;
}

void Coordinator::receive(LinkId link, const FromAgent& message, Clock::time_point now) {
  auto& state = *state_;
  state.peers[link].last_heard = now;
  if (const auto* pong = std::get_if<Pong>(&message); pong != nullptr && pong->stalled_ms > 0) {
    log(concat("stalled ", state.peers[link].host));
  }
  if (const auto* opened = std::get_if<Opened>(&message)) {
    Start start;
    start.round = opened->round;
    state.send(link, start);
  } else if (const auto* failed = std::get_if<Failed>(&message)) {
    log("Failed");
    for (const auto& [other, peer] : state.peers)
      state.send(other, Stop{failed->round, false, "", failed->by_signal ? failed->code : 0});
  } else if (const auto* succeeded = std::get_if<Succeeded>(&message)) {
    for (Round i = 0; i < succeeded->round; ++i) state.send(link, EventLine{std::string(60'000, 'e')});
  } else if (std::holds_alternative<Leave>(message)) {
    state.send(link, VerdictMessage{});
    state.outputs.push_back({link, std::nullopt});
    state.peers.erase(link);
  } else if (const auto* abort = std::get_if<Abort>(&message)) {
    log(concat("Abort: ", abort->what));
    for (const auto& [other, peer] : state.peers) state.send(other, VerdictMessage{});
    state.done = true;
  }
}

void Coordinator::note_activity(LinkId link, Clock::time_point now) {
  const auto peer = state_->peers.find(link);
  if (peer != state_->peers.end()) peer->second.last_heard = now;
}

void Coordinator::connection_broken(LinkId link, const std::string& /*how*/) {
  const auto peer = state_->peers.find(link);
  if (peer != state_->peers.end()) log(concat("broke ", peer->second.host));
}

void Coordinator::lost(LinkId link, const std::string& how, Clock::time_point /*now*/) {
  const auto peer = state_->peers.find(link);
  if (peer == state_->peers.end()) return;
  log(concat("lost ", peer->second.host, ": ", how));
  state_->peers.erase(peer);
}

void Coordinator::tick(Clock::time_point now) {
  auto& state = *state_;
  if (!state.next_ping || *state.next_ping > now) return;
  const auto& options = state.options;
  state.next_ping = now + options.heartbeat_interval;
  ++state.pings;
  for (auto peer = state.peers.begin(); peer != state.peers.end();) {
    if (now - peer->second.last_heard > options.heartbeat_interval * options.heartbeat_misses) {
      log(concat("silent ", peer->second.host));
      state.outputs.push_back({peer->first, std::nullopt});
      peer = state.peers.erase(peer);
    } else {
      state.send(peer->first, Ping{state.pings});
      ++peer;
    }
  }
}

std::vector<Coordinator::Output> Coordinator::take_outputs() { return std::exchange(state_->outputs, {}); }
std::vector<std::string> Coordinator::take_warnings() { return {}; }
std::optional<Clock::time_point> Coordinator::next_deadline() const { return state_->next_ping; }
bool Coordinator::done() const { return state_->done; }
void Coordinator::suspend(Clock::time_point /*now*/) {}
void Coordinator::lead(Term /*term*/, Clock::time_point /*now*/) {}
void Coordinator::step_down(const std::string& /*why*/, Clock::time_point /*now*/) {}
std::optional<VerdictMessage> Coordinator::take_verdict_to_record() { return std::nullopt; }
void Coordinator::recorded(Clock::time_point /*now*/) {}
bool Coordinator::stepped_down() const { return false; }
std::vector<Coordinator::MemberView> Coordinator::members() const { return {}; }
Round Coordinator::round() const { return 0; }
int Coordinator::restarts() const { return 0; }
std::optional<VerdictMessage> Coordinator::verdict() const { return std::nullopt; }

}  // namespace ddrun::rendezvous
