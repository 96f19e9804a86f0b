#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/collectives/communicator.hpp"
#include "exchange.hpp"
#include "gpu/survey.hpp"

namespace ddrun::collectives {

/// Data of all ranks, equal on every rank before they are connected, so that each makes the same decisions without
/// further messages. Indexed by rank.
struct Ranks {
  const Group& group;
  CommunicatorOptions options;
  const std::vector<HostIdentity>& hosts;
  const std::vector<GpuSurvey>& surveys;  ///< empty if the ranks did not probe for GPUs
};

struct BackendConnection {
  std::shared_ptr<Communicator> communicator;
  /// Why this back end was chosen. Empty: because the previous ones were not eligible, or it was requested.
  std::string why{};
  /// See Connected. Null: equal to `communicator`.
  std::shared_ptr<Communicator> control{};
};

/// Whether `auto` may choose a back end for these ranks.
struct Eligibility {
  bool eligible = true;
  std::string reason{};  ///< empty: not worth reporting
};

/// Whether a back end uses GPUs.
enum class GpuUse : unsigned char { none, optional, required };

/// A back end: a row of the table in back_ends.cpp, which is the only list of them.
struct BackEnd {
  std::string_view name;
  Backend backend;  ///< selected by --backend
  std::string_view help;
  /// See collectives::probe(). Null: always available.
  Result<std::string> (*probe)() = nullptr;
  /// Connects all ranks; called on every rank. Fails on all ranks if it fails on one.
  Result<BackendConnection> (*connect)(const Ranks& ranks, Deadline deadline);
  /// Null: not chosen by `auto`, which takes the first eligible row of the table, and the next one if connecting a back
  /// end without GPUs fails. Equal on all ranks.
  Eligibility (*eligibility)(const Ranks& ranks) = nullptr;
  GpuUse gpus = GpuUse::none;
};

[[nodiscard]] const BackEnd& back_end(Backend backend);

[[nodiscard]] Result<BackendConnection> connect_backend(const Ranks& ranks, Deadline deadline);

/// The control communicator (Connected::control) of a back end that needs one: the choice of `auto` without GPUs, with
/// no buffers.
[[nodiscard]] Result<std::shared_ptr<Communicator>> connect_control(const Ranks& ranks, Deadline deadline);

// Functions of the table's rows, each defined in its back end's source.

/// Available with a GPU and NCCL.
[[nodiscard]] Result<std::string> probe_nccl();
/// Not eligible where NCCL might refuse; an explicit --backend=nccl still tries it.
[[nodiscard]] Eligibility nccl_eligibility(const Ranks& ranks);
[[nodiscard]] Result<BackendConnection> connect_nccl(const Ranks& ranks, Deadline deadline);

/// Eligible if all ranks can map the same memory.
[[nodiscard]] Eligibility shm_eligibility(const Ranks& ranks);
[[nodiscard]] Result<BackendConnection> connect_shm(const Ranks& ranks, Deadline deadline);

[[nodiscard]] Result<BackendConnection> connect_tcp(const Ranks& ranks, Deadline deadline);

/// The version of the linked Gloo, or `unsupported` with how to build with it.
[[nodiscard]] Result<std::string> probe_gloo();
/// Collectives by the Gloo library over TCP, for comparison. Gloo reports only that a connection failed, so the control
/// communicator detects exited peers. Ranks that make different calls are not detected.
[[nodiscard]] Result<BackendConnection> connect_gloo(const Ranks& ranks, Deadline deadline);

}  // namespace ddrun::collectives
