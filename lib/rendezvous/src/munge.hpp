#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/result.hpp"
#include "ddrun/helper/run.hpp"
#include "ddrun/rendezvous/hmac.hpp"
#include "ddrun/rendezvous/munge.hpp"

// What is said to the programs `munge` and `unmunge`, and what they answer. They, and not libmunge: a static ddrun can
// load no library of the machine, and a program that hangs can be ended.

namespace ddrun::rendezvous {

/// A munged that is asked by many answers in milliseconds all the same.
inline constexpr helper::Limits munge_limits{std::chrono::seconds(10), 64 * 1024};
/// For so long a credential can be decoded. Clocks of a cluster differ by less.
inline constexpr std::chrono::seconds credential_life{300};

/// What the coordinator puts into its credential.
[[nodiscard]] std::string credential_payload(const std::string& job, std::string_view secret);

/// Seals what is on its stdin so that only this user can read it, on any machine with the same key of MUNGE.
[[nodiscard]] std::vector<std::string> munge_command(const MungePlace& place, uid_t uid);
/// The credential. Fails with `unavailable`.
[[nodiscard]] Result<std::string> credential_of(const Result<helper::Output>& answer);

/// Opens what is on its stdin.
[[nodiscard]] std::vector<std::string> unmunge_command(const MungePlace& place);
/// The secret in a coordinator's credential, if a process of user `uid` in Slurm job `job` has sealed it. A credential
/// that was opened on this machine before is as good: only that user can read it, so nobody gains by sending it again.
/// Fails with `unavailable` for what may be otherwise the next time, else with `invalid_argument`.
[[nodiscard]] Result<HmacKey> secret_of(const Result<helper::Output>& answer, const std::string& job, uid_t uid);

}  // namespace ddrun::rendezvous
