#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddrun::remote {

/// The addresses of this machine, in the order in which others should try them: the one by which ssh has reached it
/// (third word of `ssh_connection`, the value of SSH_CONNECTION, may be empty), those of its interfaces, loopback last.
[[nodiscard]] std::vector<std::string> addresses_for_others(std::string_view ssh_connection);

}  // namespace ddrun::remote
