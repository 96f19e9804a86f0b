#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "ddrun/base/unique_fd.hpp"
#include "ddrun/remote/bootstrap.hpp"

namespace ddrun::remote {

/// The connection of a host's ddrun to the user's ddrun (the head), through the relay. Closes its descriptors.
class HeadConnection {
 public:
  HeadConnection(UniqueFd control, UniqueFd events, UniqueFd report, std::array<UniqueFd, 2> frames)
      : control_(std::move(control)),
        events_(std::move(events)),
        report_(std::move(report)),
        frames_(std::move(frames)) {}
  /// Reports the coordinator's port on this host. Blocks only for a small write to a local socket.
  void report_coordinator_port(std::uint16_t port) const;
  /// Reports that a round begins on this host. Blocks no longer than the above.
  void report_round() const;
  /// Reads the job's secret; call once, in one process. The caller wipes it. Empty if the relay has ended.
  [[nodiscard]] std::string read_secret() const;
  /// Paths for --events and --report of the coordinator's ddrun; their content is sent to the head. Writing events
  /// blocks only for a small write to a local pipe; writing the report is subject to back pressure, like output.
  [[nodiscard]] std::string events_path() const;
  [[nodiscard]] std::string report_path() const;
  /// For LogSpec::frames.
  [[nodiscard]] std::pair<int, int> frames() const;

 private:
  UniqueFd control_;
  UniqueFd events_;
  UniqueFd report_;
  std::array<UniqueFd, 2> frames_;  ///< of stdout and stderr; the second is empty if both are one
};

struct RelayOptions {
  std::string build_id;
  bool private_copy = false;  ///< this executable was copied for one job and removes itself
};

/// `ddrun relay`: the process at the remote end of an ssh connection. Forwards output to the head, and signals and
/// stdin to the job; stops the job if the connection is lost or silent for 30 s.
///
/// `node_main` runs in a child, forked first, once the host's part has been received; its result is the child's exit
/// code. Blocks until the job has ended; returns this program's exit code.
int run_relay(const RelayOptions& options,
              const std::function<int(const Bootstrap&, const HeadConnection&)>& node_main);

}  // namespace ddrun::remote
