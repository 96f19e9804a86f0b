#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/result.hpp"

namespace ddrun::remote {

/// "ssh -F 'my file'" -> its words, as a shell would cut them; quotes and '\' are understood, nothing else is special.
/// Fails with `invalid_argument` for an unfinished quote or no word at all.
[[nodiscard]] Result<std::vector<std::string>> split_command(std::string_view text);

/// What the other side writes on its own line before anything else: frames follow, or the program is to be sent.
[[nodiscard]] std::string frames_marker(std::string_view build_id);
[[nodiscard]] std::string copy_marker(std::string_view build_id);

/// The one word that ssh gets as the remote command. It looks for a ddrun of this very build where ours lies and along
/// PATH, and runs it if nobody but root and the user could have put it there; else it asks for the program
/// (copy_marker), takes `size` bytes into a private directory and runs it there with --private, whereupon the program
/// removes itself. What has not come within `limit` is not waited for: nothing is left then.
///
/// Whatever shell the user has there must read it, csh and fish as well: /bin/sh does the work, and its script stands
/// within single quotes without any of ' \ ! or newlines.
[[nodiscard]] std::string remote_command(std::string_view build_id, const std::string& program, std::uint64_t size,
                                         std::chrono::milliseconds limit);

}  // namespace ddrun::remote
