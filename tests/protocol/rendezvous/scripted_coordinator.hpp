#pragma once

#include <string>
#include <vector>

#include "ddrun/rendezvous/coordinator.hpp"

// In place of the real Coordinator, so that these tests are about connections and about nothing else. Linked instead of
// it: the server under test does not know the difference.
//
// What it does: to Join of the job "elsewhere", unless that is its own, it answers that another job is served here, to
// any other Welcome (and, of the jobs "nobody" and "link-local", an Open that names no machine, or only an address
// without an interface), to Opened{round} Start{round}; Failed it tells everybody as Stop with the same round and
// signal; Succeeded{n} is answered with n EVENTs of 60,000 bytes; Leave with a verdict, and it hangs up; after Abort
// the job is done. It pings everybody once per interval and hangs up on who is silent for interval x misses.
namespace ddrun::test {

/// All that it was told, in order: "join node7 10.0.0.1 job", "node7 has 10.0.0.1 fd00::1", "lost node7: connection
/// closed", "broke node7", "silent node7", "stalled node7", "Failed", "Abort: it cannot".
[[nodiscard]] std::vector<std::string> coordinator_log();
void clear_coordinator_log();
/// Waits until the log has that line; false after 20 s.
[[nodiscard]] bool coordinator_has_logged(const std::string& line);

}  // namespace ddrun::test
