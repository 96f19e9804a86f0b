#include "scripted_job.hpp"
#include "member_views.hpp"

#include <algorithm>

namespace ddrun::test {

ScriptedJob::ScriptedJob(int min_nodes, int max_nodes, Settings changed) {
  std::map<std::string, std::string> all = {{"min_nodes", std::to_string(min_nodes)},
                                            {"max_nodes", std::to_string(max_nodes)},
                                            {"max_restarts", "3"},
                                            {"restart_backoff_ms", "0"},
                                            {"restart_window_ms", ""},
                                            {"same_cause", "3"},
                                            {"last_call_ms", "30000"},
                                            {"join_timeout_ms", "600000"},
                                            {"exit_skew_ms", ""},
                                            {"node_max_failures", "0"},
                                            {"grace_ms", "10000"}};
  for (auto& [key, value] : changed) all[key] = value;
  settings.assign(all.begin(), all.end());
  options.host = "a";
  options.own_addresses = {ip("10.0.0.1")};
}

Coordinator& ScriptedJob::coordinator() {
  if (!coordinator_) coordinator_.emplace(options);
  return *coordinator_;
}

Join ScriptedJob::join_of(const std::string& host) const {
  Join join;
  join.version = "1.0";
  join.job_id = "job";
  join.agent_id = "agent " + std::to_string(links_ + 1);
  join.host = host;
  join.local_world_size = 2;
  join.settings = settings;
  return join;
}

Join ScriptedJob::own_join_of(const std::string& host) {
  if (coordinator_) throw std::logic_error("the coordinator is there already");
  Join own = join_of(host);
  own.agent_id = "the coordinator's agent";
  options.own_join = own;
  return own;
}

LinkId ScriptedJob::joins(const std::string& host, int node_rank) {
  Join join = join_of(host);
  join.node_rank = node_rank;
  return joins(join);
}

LinkId ScriptedJob::joins(const Join& join, LinkAddresses addresses) {
  const LinkId link = ++links_;
  if (addresses.peer_address.is_unspecified()) {
    addresses.peer_address = ip("10.0." + std::to_string(link / 256) + "." + std::to_string(link % 256));
  }
  if (addresses.local_address.is_unspecified()) addresses.local_address = ip("10.0.0.1");
  coordinator().join(link, join, addresses, now);
  deliver();
  return link;
}

void ScriptedJob::sends(LinkId link, const FromAgent& message) {
  coordinator().receive(link, message, now);
  deliver();
}

void ScriptedJob::disconnects(LinkId link, const std::string& how) {
  coordinator().lost(link, how, now);
  deliver();
}

void ScriptedJob::opens(std::uint16_t port) {
  for (const auto& member : member_views(coordinator())) {
    if (member.node_rank != 0) continue;
    sends(member.link, Opened{coordinator().job().round, port});
    return;
  }
}

void ScriptedJob::fails(LinkId link, int rank, int code, bool may_restart) {
  Failed failed;
  failed.round = coordinator().job().round;
  failed.rank = rank;
  failed.code = code;
  failed.may_restart = may_restart;
  sends(link, failed);
}

void ScriptedJob::succeeds(LinkId link) { sends(link, Succeeded{coordinator().job().round}); }

void ScriptedJob::stops(LinkId link, const Failure& failure, const std::string& workers) {
  sends(link, Stopped{coordinator().job().round, failure, workers});
}

void ScriptedJob::stops(LinkId link, const std::string& failure, const std::string& workers) {
  stops(link, Failure{failure, failure}, workers);
}

void ScriptedJob::leaves(LinkId link, int signal) { sends(link, Leave{LeaveKind::signalled, signal, "pid 7"}); }

void ScriptedJob::wait(Milliseconds time) {
  const auto end = now + time;
  for (;;) {
    const auto deadline = coordinator().next_deadline();
    if (!deadline || *deadline > end) break;
    now = std::max(now, *deadline);
    coordinator().tick(now);
    deliver();
  }
  now = end;
}

std::vector<FromCoordinator> ScriptedJob::received(LinkId link) {
  const auto queue = std::exchange(queues_[link], {});
  return {queue.begin(), queue.end()};
}

int ScriptedJob::node_rank(LinkId link) {
  for (const auto& member : member_views(coordinator())) {
    if (member.link == link) return member.node_rank;
  }
  return -1;
}

void ScriptedJob::deliver() {
  for (;;) {
    const auto outputs = coordinator().take_outputs();
    if (outputs.empty()) return;
    for (const auto& output : outputs) {
      if (!output.message) {
        closed_[output.link] = true;
        continue;
      }
      ++counts_[output.link][output.message->index()];
      if (const auto* ping = std::get_if<Ping>(&*output.message)) {
        if (silent_.count(output.link) != 0) continue;
        Pong pong{ping->number};
        if (const auto since = stalled_since_.find(output.link); since != stalled_since_.end()) {
          pong.stalled_ms = static_cast<std::uint32_t>((now - since->second) / Milliseconds{1});
        }
        coordinator().receive(output.link, pong, now);
      } else if (const auto* log = std::get_if<Log>(&*output.message); log != nullptr && log->kind == LogKind::event) {
        events_.push_back(log->text);
      } else {
        queues_[output.link].push_back(*output.message);
      }
    }
  }
}

}  // namespace ddrun::test
