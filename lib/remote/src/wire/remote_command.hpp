#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/result.hpp"

namespace ddrun::remote {

/// Splits a command such as "ssh -F 'my file'" into words as a shell does; only quotes and '\' are special. Fails with
/// `invalid_argument` for an unclosed quote or an empty command.
[[nodiscard]] Result<std::vector<std::string>> split_command(std::string_view text);

/// Whether the command is OpenSSH's client, which takes further options.
[[nodiscard]] bool is_openssh(const std::vector<std::string>& command);

/// The line that the remote side writes first: frames follow, or it requests the executable.
[[nodiscard]] std::string frames_marker(std::string_view build_id);
[[nodiscard]] std::string copy_marker(std::string_view build_id);

/// The remote command for ssh, as one argument. It searches a ddrun of the same build at our path and in PATH, and runs
/// it if only root and the user can write there. Otherwise it requests the executable (copy_marker), reads `size` bytes
/// into a private directory and runs it with --private, which removes the copy. After `limit` it gives up and cleans
/// up.
///
/// Any login shell must parse it, also csh and fish: it runs /bin/sh with a script in single quotes that contains no '
/// \ ! or newline.
[[nodiscard]] std::string remote_command(std::string_view build_id, const std::string& program, std::uint64_t size,
                                         std::chrono::milliseconds limit);

/// Whether OpenSSH's stderr says only that a proxy (a jump host) closed the connection before the login, as a busy sshd
/// does (MaxStartups). False if any other line is there: ssh says the same behind a jump host's own reason to refuse.
[[nodiscard]] bool closed_by_proxy(std::string_view errors);

}  // namespace ddrun::remote
