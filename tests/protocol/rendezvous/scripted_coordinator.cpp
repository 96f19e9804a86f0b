#include "scripted_coordinator.hpp"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "coordinator.hpp"
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

namespace {

struct Script {
  struct Peer {
    std::string host;
    Clock::time_point last_heard;
    std::uint32_t pong = 0;
  };
  std::map<LinkId, Peer> peers;
  std::optional<Clock::time_point> next_ping;
  std::uint32_t pings = 0;
};

/// Each coordinator is used by one thread at a time.
Script& script_of(const Coordinator& coordinator) {
  static std::map<const Coordinator*, Script> scripts;
  const std::lock_guard lock(test::mutex);
  return scripts[&coordinator];
}

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options)
    : job_(std::move(options), [] { return std::optional<LinkId>(); }) {
  script_of(*this) = {};
}

void Coordinator::join(LinkId link, const Join& join, const LinkAddresses& addresses, Clock::time_point now) {
  const CoordinatorOptions& options = job_.options;
  if (join.job_id == "elsewhere" && options.job_id != "elsewhere") {
    return job_.out.refuse(link, RefusalKind::other_job, "another job is served here");
  }
  log(concat("join ", join.host, " ", addresses.peer_address.text(), " ", options.job_id));
  Script& script = script_of(*this);
  script.peers[link] = {join.host, now, 0};
  Welcome welcome;
  welcome.coordinator_host = "coordinator's host";
  welcome.heartbeat_ms = static_cast<std::uint32_t>(options.heartbeat_interval.count());
  welcome.heartbeat_misses = static_cast<std::uint32_t>(options.heartbeat_misses);
  job_.out.send(link, welcome);
  if (join.job_id == "no-address") job_.out.send(link, Open{1, "127.0.0.1", {}});
  if (join.job_id == "link-local") job_.out.send(link, Open{1, "fe80::1", {"fe80::2"}});
  if (!script.next_ping) script.next_ping = now + options.heartbeat_interval;
}

void Coordinator::receive(LinkId link, const FromAgent& message, Clock::time_point now) {
  auto& peers = script_of(*this).peers;
  peers[link].last_heard = now;
  if (const auto* pong = std::get_if<Pong>(&message)) {
    peers[link].pong = pong->number;
    if (pong->stalled_ms > 0) log(concat("stalled ", peers[link].host));
  }
  if (const auto* opened = std::get_if<Opened>(&message)) {
    Start start;
    start.round = opened->round;
    job_.out.send(link, start);
  } else if (const auto* failed = std::get_if<Failed>(&message)) {
    log("Failed");
    for (const auto& [other, peer] : peers)
      job_.out.send(other, Stop{failed->round, false, "", failed->by_signal ? failed->code : 0});
  } else if (const auto* succeeded = std::get_if<Succeeded>(&message)) {
    for (Round i = 0; i < succeeded->round; ++i) job_.out.send(link, Log{LogKind::event, std::string(60'000, 'e')});
  } else if (const auto* leave = std::get_if<Leave>(&message);
             leave != nullptr && leave->kind == LeaveKind::signalled) {
    job_.out.send(link, VerdictMessage{});
    job_.out.close(link);
    peers.erase(link);
  } else if (leave != nullptr) {
    log(concat("gave up: ", leave->text));
    for (const auto& [other, peer] : peers) job_.out.send(other, VerdictMessage{});
    (void)job_.state.enter(CoordinatorOrder::Step::step_down);
  }
}

void Coordinator::note_activity(LinkId link, Clock::time_point now) {
  auto& peers = script_of(*this).peers;
  if (const auto peer = peers.find(link); peer != peers.end()) peer->second.last_heard = now;
}

void Coordinator::connection_broken(LinkId link, const std::string& /*how*/) {
  const auto& peers = script_of(*this).peers;
  if (const auto peer = peers.find(link); peer != peers.end()) log(concat("broke ", peer->second.host));
}

void Coordinator::lost(LinkId link, const std::string& how, Clock::time_point /*now*/) {
  auto& peers = script_of(*this).peers;
  const auto peer = peers.find(link);
  if (peer == peers.end()) return;
  log(concat("lost ", peer->second.host, ": ", how));
  peers.erase(peer);
}

void Coordinator::tick(Clock::time_point now) {
  Script& script = script_of(*this);
  if (!script.next_ping || *script.next_ping > now) return;
  const CoordinatorOptions& options = job_.options;
  script.next_ping = now + options.heartbeat_interval;
  ++script.pings;
  for (auto peer = script.peers.begin(); peer != script.peers.end();) {
    if (now - peer->second.last_heard > options.heartbeat_interval * options.heartbeat_misses) {
      log(concat("silent ", peer->second.host));
      job_.out.close(peer->first);
      peer = script.peers.erase(peer);
    } else {
      job_.out.send(peer->first, Ping{script.pings, 0, peer->second.pong});
      ++peer;
    }
  }
}

std::vector<Output> Coordinator::take_outputs() { return job_.out.take(); }
std::optional<Clock::time_point> Coordinator::next_deadline() const { return script_of(*this).next_ping; }
void Coordinator::suspend(Clock::time_point /*now*/) {}
void Coordinator::lead(Term /*term*/, Clock::time_point /*now*/) {}
void Coordinator::step_down(const std::string& /*why*/, Clock::time_point /*now*/) {}
std::optional<VerdictMessage> Coordinator::take_verdict_to_record() { return std::nullopt; }
void Coordinator::recorded(Clock::time_point /*now*/) {}

}  // namespace ddrun::rendezvous
