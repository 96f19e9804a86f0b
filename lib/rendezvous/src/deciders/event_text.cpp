#include "ddrun/rendezvous/event_text.hpp"

#include <nlohmann/json.hpp>

namespace ddrun::rendezvous::event_text {

namespace {

using nlohmann::ordered_json;

// Host names come from other machines and need not be UTF-8.
std::string line(const ordered_json& json) { return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace); }

ordered_json node_event(const char* event, Round round, const Node& node) {
  return {{"event", event},
          {"round", round},
          {"host", node.host},
          {"address", node.address},
          {"node_rank", node.node_rank}};
}

ordered_json role_json(const std::string& role) { return role.empty() ? ordered_json(nullptr) : ordered_json(role); }

}  // namespace

const char* name(VerdictKind kind) {
  switch (kind) {
    case VerdictKind::success: return "success";
    case VerdictKind::worker_failed: return "worker_failed";
    case VerdictKind::timed_out: return "timed_out";
    case VerdictKind::stopped_by_signal: return "stopped_by_signal";
    case VerdictKind::launcher_failed: return "launcher_failed";
    case VerdictKind::node_lost: return "node_lost";
  }
  return "unknown";
}

std::string joined(Round last, const Node& node, int local_world_size, int nodes, bool spare) {
  return line({{"event", "joined"},
               {"round", last},
               {"host", node.host},
               {"address", node.address},
               {"local_world_size", local_world_size},
               {"nodes", nodes},
               {"spare", spare}});
}

std::string waiting(Round last, int nodes, int min_nodes, int max_nodes, const std::string& waiting_for) {
  return line({{"event", "waiting"},
               {"round", last},
               {"nodes", nodes},
               {"min_nodes", min_nodes},
               {"max_nodes", max_nodes},
               {"why", waiting_for}});
}

std::string round(Round number, int restarts, int world_size, const std::string& address,
                  const std::vector<std::string>& hosts) {
  return line({{"event", "round"},
               {"round", number},
               {"restarts", restarts},
               {"nodes", hosts.size()},
               {"world_size", world_size},
               {"address", address},
               {"hosts", hosts}});
}

std::string started(Round number, int restarts, int nodes) {
  return line({{"event", "started"}, {"round", number}, {"restarts", restarts}, {"nodes", nodes}});
}

std::string succeeded(Round number, const Node& node) { return line(node_event("succeeded", number, node)); }

std::string ended(Round number, bool another, const std::string& why) {
  return line({{"event", "ended"}, {"round", number}, {"another_round", another}, {"why", why}});
}

std::string failed(const Failed& failure, const Node& node, const std::string& why) {
  ordered_json json = node_event("failed", failure.round, node);
  json["role"] = role_json(failure.role);
  json["rank"] = failure.rank;
  json["local_rank"] = failure.local_rank;
  json["pid"] = failure.pid;
  json[failure.by_signal ? "signal" : "exit_code"] = failure.code;
  json["why"] = why;
  return line(json);
}

std::string lost(Round number, const Node& node, const std::string& why) {
  ordered_json json = node_event("lost", number, node);
  json["why"] = why;
  return line(json);
}

std::string left(Round number, const Node& node, const std::string& why) {
  ordered_json json = node_event("left", number, node);
  json["why"] = why;
  return line(json);
}

std::string restart(Round number, int restarts, int max_restarts, Milliseconds pause, const std::string& why) {
  return line({{"event", "restart"},
               {"round", number},
               {"restarts", restarts},
               {"max_restarts", max_restarts},
               {"pause_ms", pause.count()},
               {"why", why}});
}

std::string excluded(Round number, const Node& node, int failures) {
  ordered_json json = node_event("excluded", number, node);
  json["failures"] = failures;
  return line(json);
}

std::string refused(Round last, const std::string& host, const std::string& address, const std::string& why) {
  return line({{"event", "refused"}, {"round", last}, {"host", host}, {"address", address}, {"why", why}});
}

std::string moved(Round last, const std::string& why) {
  return line({{"event", "moved"}, {"round", last}, {"why", why}});
}

std::string verdict(Round number, const VerdictMessage& verdict) {
  return line({{"event", "verdict"},
               {"round", number},
               {"verdict", name(verdict.kind)},
               {"exit_code", verdict.exit_code},
               {"signal", verdict.signal},
               {"host", verdict.host},
               {"node_rank", verdict.node_rank},
               {"role", role_json(verdict.role)},
               {"rank", verdict.rank},
               {"restarts", verdict.restarts},
               {"why", verdict.why}});
}

}  // namespace ddrun::rendezvous::event_text
