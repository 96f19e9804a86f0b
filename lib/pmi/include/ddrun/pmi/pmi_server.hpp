#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ddrun/base/duration.hpp"

namespace ddrun::pmi {

/// One MPI world of a round, as the agent of one machine knows it. A slot is the index of a worker of this machine.
struct World {
  int size = 1;                ///< ranks of all machines
  std::vector<int> ranks{0};   ///< of each slot; not necessarily consecutive
  std::vector<int> appnums{};  ///< of each slot; 0 for slots that it leaves out
  int nodes = 1;               ///< machines that exchange
  /// 16 random bytes, of which all machines make the name of the round's key space: those of node rank 0 count.
  std::string random{};
};

// Events.
namespace pmi_event {
struct Start {};  ///< the first event
struct Line {     ///< of a rank's connection, without its newline
  int slot = 0;
  std::string text;
};
struct Garbage {  ///< the connection cannot be read any further
  int slot = 0;
  std::string why;  ///< "a line of more than 64 KiB"
};
struct Ended {  ///< the worker; its socket was drained before
  int slot = 0;
  bool success = false;
};
/// A part of the nodes' blobs for a tag, in the order of node ranks from `first` on.
struct Exchanged {
  std::uint32_t tag = 0;
  int first = 0;
  std::vector<std::string> blobs;
  bool last = false;  ///< no further part of this tag follows
};
struct TimeIsUp {};  ///< next_deadline() is reached
}  // namespace pmi_event

using PmiEvent = std::variant<pmi_event::Start, pmi_event::Line, pmi_event::Garbage, pmi_event::Ended,
                              pmi_event::Exchanged, pmi_event::TimeIsUp>;

// Actions, to be run in the order given.
namespace pmi_action {
struct Answer {  ///< to a rank's connection
  int slot = 0;
  std::string text;  ///< with its newline
};
struct CutOff {  ///< close that rank's connection
  int slot = 0;
};
struct Contribute {  ///< this node's blob for a tag, to the coordinator; only with several nodes
  std::uint32_t tag = 0;
  std::string blob;  ///< at most 3 MiB
};
/// That rank has failed, though its process may run or may have ended with 0; at most one in a round. A blob that would
/// be too large is a failure of the rank that entered the barrier last.
struct Fail {
  int slot = 0;
  int code = 1;     ///< exit code, 1 to 255
  std::string why;  ///< "called MPI_Abort(3)", to follow "rank 2"
};
struct Notice {  ///< a warning for the user
  std::string text;
};
}  // namespace pmi_action

using PmiAction =
    std::variant<pmi_action::Answer, pmi_action::CutOff, pmi_action::Contribute, pmi_action::Fail, pmi_action::Notice>;

/// Answers PMI-1 (MPICH, src/pmi/maint/pmi-1.1.txt) for the ranks of one machine in one round, and judges
/// how they end. A state machine without socket or clock: the owner feeds events and runs the actions.
class PmiServer {
 public:
  explicit PmiServer(World world);
  ~PmiServer();
  PmiServer(PmiServer&&) noexcept;
  PmiServer& operator=(PmiServer&&) noexcept;

  [[nodiscard]] std::vector<PmiAction> step(const PmiEvent& event, Clock::time_point now);
  [[nodiscard]] std::optional<Clock::time_point> next_deadline() const;

  /// A rank of this machine has said `init`.
  [[nodiscard]] bool was_used() const;
  /// Names in /dev/shm that MPICH 5 gives to this machine's segments of the round, and does not remove when it is
  /// killed; empty until the name of the key space is known, which with several machines one exchange decides.
  [[nodiscard]] std::vector<std::string> segments() const;

 private:
  class Machine;
  std::unique_ptr<Machine> machine_;
};

}  // namespace ddrun::pmi
