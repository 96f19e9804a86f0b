#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "ddrun/pmi/pmi_server.hpp"

namespace ddrun::pmi {

/// Tags of PMIx have this bit set: an order of their own.
inline constexpr std::uint32_t pmix_tag = 0x80000000U;

// Events.
namespace pmix_event {
struct Begin {  ///< a round; after the first, or after End
  World world;
  int node = 0;           ///< node rank of this machine
  std::string directory;  ///< for files of the round's ranks
  bool oversubscribed = false;
};
struct Frame {  ///< of the helper, without its length
  int type = 0;
  std::string payload;
};
struct Lost {  ///< the helper has ended
  std::string why;
};
struct Ended {  ///< the worker; the helper's frames were drained before
  int slot = 0;
  bool success = false;
};
using Exchanged = pmi_event::Exchanged;
struct End {};  ///< no process of the round is left
}  // namespace pmix_event

using PmixEvent = std::variant<pmix_event::Begin, pmix_event::Frame, pmix_event::Lost, pmix_event::Ended,
                               pmix_event::Exchanged, pmix_event::End>;

// Actions, to be run in the order given.
namespace pmix_action {
struct Tell {  ///< the helper
  std::string frame;
};
using Contribute = pmi_action::Contribute;
struct Ready {                                      ///< workers may be started, with these variables
  std::vector<std::vector<std::string>> variables;  ///< NAME=VALUE, of each slot
};
using Fail = pmi_action::Fail;
struct GiveUp {  ///< no world can be had on this machine, or its ranks cannot go on
  std::string why;
};
}  // namespace pmix_action

using PmixAction = std::variant<pmix_action::Tell, pmix_action::Contribute, pmix_action::Ready, pmix_action::Fail,
                                pmix_action::GiveUp>;

/// Serves PMIx to the ranks of one machine, round after round, by OpenPMIx's own server in a helper program
/// (apps/ddrun-pmix), and judges how ranks end. A state machine without socket or clock: the owner feeds events and
/// runs the actions.
class PmixServer {
 public:
  /// `label`: of this machine, another than that of each other one.
  explicit PmixServer(std::string label);
  ~PmixServer();
  PmixServer(PmixServer&&) noexcept;
  PmixServer& operator=(PmixServer&&) noexcept;

  [[nodiscard]] std::vector<PmixAction> step(const PmixEvent& event);
  /// Of the library that the helper has opened; empty before.
  [[nodiscard]] const std::string& version() const;
  /// A rank of this machine has connected, in any round.
  [[nodiscard]] bool was_used() const;

 private:
  class Machine;
  std::unique_ptr<Machine> machine_;
};

}  // namespace ddrun::pmi
