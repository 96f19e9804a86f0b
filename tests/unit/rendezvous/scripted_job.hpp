#pragma once

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "coordinator.hpp"
#include "ddrun/base/address.hpp"

namespace ddrun::test {

using namespace ddrun::rendezvous;

/// Shorthand for an address literal.
inline IpAddress ip(const std::string& text) { return IpAddress::parse(text).value(); }

/// A coordinator with scripted agents. Time passes only in wait(); pings are answered unless an agent is silent.
class ScriptedJob {
 public:
  explicit ScriptedJob(int min_nodes, int max_nodes, Settings changed = {});

  /// Settings of the agents that join from now on.
  Settings settings;
  CoordinatorOptions options;
  Clock::time_point now{std::chrono::hours(1)};

  Join join_of(const std::string& host) const;
  /// Join of the coordinator's own agent; to be called before the first join.
  Join own_join_of(const std::string& host);
  /// Joins from 10.0.0.<number>, number counted from 1, as link `number`; returns the link.
  LinkId joins(const std::string& host, int node_rank = -1);
  LinkId joins(const Join& join, LinkAddresses addresses = {});
  void sends(LinkId link, const FromAgent& message);
  void disconnects(LinkId link, const std::string& how = "connection reset by peer");
  void goes_silent(LinkId link) { silent_[link] = true; }
  void answers_again(LinkId link) { silent_.erase(link); }
  /// The agent's main thread is blocked from now on; the agent answers pings.
  void stalls(LinkId link) { stalled_since_[link] = now; }
  void unstalls(LinkId link) { stalled_since_.erase(link); }

  /// The usual replies, for the current round.
  void opens(std::uint16_t port = 29500);
  void fails(LinkId link, int rank, int code, bool may_restart = true);
  void succeeds(LinkId link);
  void stops(LinkId link, const Failure& failure, const std::string& workers = "");
  /// With a failure of this text only.
  void stops(LinkId link, const std::string& failure = "", const std::string& workers = "");
  void leaves(LinkId link, int signal);

  /// Calls the coordinator as its owner.
  template <class Action>
  void run(Action what) {
    what(coordinator(), now);
    deliver();
  }

  /// Advances the time, calling `tick` when due.
  void wait(Milliseconds time);

  /// Takes the messages sent to this link, without pings and events.
  std::vector<FromCoordinator> received(LinkId link);
  /// Takes messages up to the first of this type; throws if there is none.
  template <class T>
  T next(LinkId link) {
    auto& queue = queues_[link];
    while (!queue.empty()) {
      const FromCoordinator message = queue.front();
      queue.pop_front();
      if (const T* wanted = std::get_if<T>(&message)) return *wanted;
    }
    throw std::runtime_error("nothing of this kind was sent to link " + std::to_string(link));
  }
  template <class T>
  bool has(LinkId link) {
    for (const auto& message : queues_[link]) {
      if (std::holds_alternative<T>(message)) return true;
    }
    return false;
  }
  void forget_all() { queues_.clear(); }
  [[nodiscard]] bool closed(LinkId link) const { return closed_.count(link) != 0; }
  [[nodiscard]] const std::vector<std::string>& events() const { return events_; }
  /// All messages that were sent to this link, by index of FromCoordinator.
  [[nodiscard]] std::map<std::size_t, int> counts(LinkId link) const {
    const auto found = counts_.find(link);
    return found == counts_.end() ? std::map<std::size_t, int>{} : found->second;
  }
  void forget_counts() { counts_.clear(); }

  Coordinator& coordinator();
  [[nodiscard]] int node_rank(LinkId link);

 private:
  void deliver();

  std::optional<Coordinator> coordinator_;
  LinkId links_ = 0;
  std::map<LinkId, std::deque<FromCoordinator>> queues_;
  std::map<LinkId, std::map<std::size_t, int>> counts_;
  std::map<LinkId, bool> closed_;
  std::map<LinkId, bool> silent_;
  std::map<LinkId, Clock::time_point> stalled_since_;
  std::vector<std::string> events_;
};

}  // namespace ddrun::test
