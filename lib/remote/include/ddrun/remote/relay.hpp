#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "ddrun/base/unique_fd.hpp"
#include "ddrun/remote/bootstrap.hpp"

namespace ddrun::remote {

/// What the ddrun of one host can tell the user's ddrun.
class HeadConnection {
 public:
  HeadConnection(UniqueFd control, UniqueFd events, UniqueFd report)
      : control_(std::move(control)), events_(std::move(events)), report_(std::move(report)) {}
  /// The coordinator listens on this port of this host. Blocks for no longer than a small write to a local socket.
  void report_coordinator_port(std::uint16_t port) const;
  /// The job's secret, once and in one process; the caller wipes it. Empty if the relay is gone.
  [[nodiscard]] std::string read_secret() const;
  /// Paths of files for --events and --report of the first host's ddrun: what is written there travels to the user's.
  /// Writing events blocks for no longer than a small write to a local pipe; the report waits as output does.
  [[nodiscard]] std::string events_path() const;
  [[nodiscard]] std::string report_path() const;

 private:
  UniqueFd control_;
  UniqueFd events_;
  UniqueFd report_;
};

struct RelayOptions {
  std::string build_id;
  bool private_copy = false;  ///< this program was copied here for one job: it removes itself
  bool portable = true;       ///< it needs no libraries
};

/// What `ddrun relay` does: it runs on a host at the far end of an ssh connection, as the one process there that talks
/// to the user's ddrun. It carries output home, signals and standard input to the job, starts further hosts if it is
/// told to, and ends the job in order when the connection is lost or silent for 30 s.
///
/// `node_main` runs in a child process, made before anything else, once the host's part is known; its result is that
/// process' exit code. Returns this program's exit code; blocks until all is over.
int run_relay(const RelayOptions& options,
              const std::function<int(const Bootstrap&, const HeadConnection&)>& node_main);

}  // namespace ddrun::remote
