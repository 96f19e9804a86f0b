#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/base/unique_fd.hpp"

// Where a running job has its Unix socket: FOLDER/PID.sock, with the PID of the ddrun that the user started. A job in
// another PID namespace that shares the folder may have the same PID; its name is PID-2.sock, and so on.

namespace ddrun::job_socket {

inline constexpr std::string_view suffix = ".sock";

/// The folders for the jobs of a user: RUNTIME_DIR/ddrun if `runtime_dir` (XDG_RUNTIME_DIR), or else /run/user/UID, is
/// the absolute path of a directory of this user (sudo may pass on another user's), and /tmp/ddrun-UID. A job has a
/// socket in each, as either may be removed while it runs, and its asker may lack the variable. TMPDIR is not used: the
/// asker may have another.
[[nodiscard]] std::vector<std::string> folders(uid_t uid, std::string_view runtime_dir);

/// A folder with O_PATH, so that what is used is what was checked. Fails with `not_found`, or with `unavailable` unless
/// it is a directory, no symbolic link, of this owner, to which others have no rights. Does not block.
[[nodiscard]] Result<UniqueFd> open_folder(const std::string& folder, uid_t owner);

/// A connection to the socket of this name in an open_folder(), non-blocking and close-on-exec. Blocks until the
/// deadline at most, while too many clients wait. Fails with `timeout`, with `connection_lost` if the job has ended, or
/// with `unavailable`. Removes the socket of a job that has ended, unless it is so new that its job may be about to
/// listen.
[[nodiscard]] Result<UniqueFd> connect(const UniqueFd& folder, const std::string& name, Deadline deadline);

}  // namespace ddrun::job_socket
