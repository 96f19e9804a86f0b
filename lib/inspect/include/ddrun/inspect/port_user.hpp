#pragma once

#include <sys/types.h>

#include <set>
#include <string>
#include <vector>

namespace ddrun::inspect {

/// The processes' TCP sockets at this local port in this network namespace, by inode: /proc/net/tcp and tcp6. Those in
/// TIME_WAIT are of no process. Does not block.
[[nodiscard]] std::set<std::string> sockets_at(int port, bool only_listening);

/// The first of these processes, or without any of all, that has one of the sockets open; 0: none that may be looked
/// at. Does not block.
[[nodiscard]] pid_t find_holder(const std::set<std::string>& sockets, std::vector<pid_t> processes = {});

}  // namespace ddrun::inspect
