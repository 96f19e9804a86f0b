#pragma once

#include <string>
#include <vector>

// Linked in place of the real Coordinator, so that these tests are about connections only.
//
// Replies: REFUSED to Join of the job "elsewhere", unless that is its own; WELCOME to any other Join (and for the jobs
// "no-address" and "link-local" an Open without addresses, or with a link-local one only); Start{round} to
// Opened{round}; to all, Stop with the same round and signal after Failed; n LOGs of 60,000 bytes to Succeeded{n}; a
// verdict and a close to Leave after a signal; after another Leave the job is done. It pings every member once per
// interval and closes those silent for interval x misses.
namespace ddrun::test {

/// All input in order: "join node7 10.0.0.1 job", "node7 has 10.0.0.1 fd00::1", "lost node7: connection closed", "broke
/// node7", "silent node7", "stalled node7", "Failed", "gave up: it cannot".
[[nodiscard]] std::vector<std::string> coordinator_log();
void clear_coordinator_log();
/// Waits until the log has that line; false after 20 s.
[[nodiscard]] bool coordinator_has_logged(const std::string& line);

}  // namespace ddrun::test
