#pragma once

#include <string>
#include <vector>

#include "ddrun/rendezvous/messages.hpp"
#include "seat.hpp"

// The lines of --events, without the time: lib/rendezvous/PROTOCOL.md, section 8.

namespace ddrun::rendezvous::event_text {

[[nodiscard]] std::string joined(const Seat& seat, int nodes, bool spare);
[[nodiscard]] std::string waiting(int nodes, int min_nodes, int max_nodes, const std::string& what_for);
[[nodiscard]] std::string round(Round number, int restarts, int world_size, const std::string& address,
                                const std::vector<const Seat*>& members);
[[nodiscard]] std::string started(Round number, int restarts, int nodes);
/// The workers of one node have all ended well.
[[nodiscard]] std::string succeeded(Round number, const Seat& seat);
/// A round is to end; `another`: one more follows.
[[nodiscard]] std::string ended(Round number, bool another, const std::string& why);
[[nodiscard]] std::string failed(const Failed& failure, const Seat& seat, const std::string& why);
[[nodiscard]] std::string lost(Round number, const Seat& seat, const std::string& why);
[[nodiscard]] std::string left(Round number, const Seat& seat, const std::string& why);
[[nodiscard]] std::string restart(Round number, int restarts, int max_restarts, Milliseconds pause,
                                  const std::string& why);
[[nodiscard]] std::string excluded(Round number, const Seat& seat, int failures);
[[nodiscard]] std::string refused(const std::string& host, const std::string& address, const std::string& why);
[[nodiscard]] std::string verdict(Round number, const VerdictMessage& verdict);

}  // namespace ddrun::rendezvous::event_text
