#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/collectives/communicator.hpp"
#include "exchange.hpp"
#include "gpu/survey.hpp"

namespace ddrun::collectives {

/// What every rank knows of all of them before they are connected, so that all decide alike and no rank has to
/// announce a decision. By rank.
struct Ranks {
  const Group& group;
  CommunicatorOptions options;
  const std::vector<HostIdentity>& hosts;
  const std::vector<GpuSurvey>& surveys;  ///< empty ones where no rank was asked to look
};

struct BackendConnection {
  std::shared_ptr<Communicator> communicator;
  /// Why it is this one, in words. Empty: because of what stands against those before it, or it was asked for.
  std::string why{};
  /// See Connected; null: the same as `communicator`.
  std::shared_ptr<Communicator> control{};
};

/// Whether `auto` takes a back end for these ranks.
struct Eligibility {
  bool eligible = true;
  std::string reason{};  ///< may be empty: not worth a word
};

/// What a back end has to do with GPUs.
enum class GpuUse : unsigned char { none, optional, required };

/// A way to move data: a row of the table in back_ends.cpp, which is all that knows what back ends there are.
struct BackEnd {
  std::string_view name;
  Backend backend;  ///< by --backend
  /// What it is, for people.
  std::string_view help;
  /// See collectives::probe(); null: there is nothing to look for.
  Result<std::string> (*probe)() = nullptr;
  /// Connects all ranks; every rank calls it. A failure of one is one of all.
  Result<BackendConnection> (*connect)(const Ranks& ranks, Deadline deadline);
  /// Null: `auto` never takes it. It takes the first in the table that suits, and of those that need no GPU the next
  /// one if that cannot be connected. The same on every rank.
  Eligibility (*eligibility)(const Ranks& ranks) = nullptr;
  GpuUse gpus = GpuUse::none;
};

[[nodiscard]] const BackEnd& back_end(Backend backend);

/// Connects what `ranks.options.backend` asks for.
[[nodiscard]] Result<BackendConnection> connect_backend(const Ranks& ranks, Deadline deadline);

/// For a back end that needs another one beside it (Connected::control): what `auto` takes without GPUs and buffers.
[[nodiscard]] Result<std::shared_ptr<Communicator>> connect_control(const Ranks& ranks, Deadline deadline);

// The functions of the table's rows, each in the source of its back end.

/// Where there is a GPU for each rank, and NCCL.
[[nodiscard]] Result<std::string> probe_nccl();
/// Where NCCL might refuse it is not chosen, but a user who asks for it gets it if NCCL can.
[[nodiscard]] Eligibility nccl_eligibility(const Ranks& ranks);
[[nodiscard]] Result<BackendConnection> connect_nccl(const Ranks& ranks, Deadline deadline);

/// Where all ranks can reach the same memory.
[[nodiscard]] Eligibility shm_eligibility(const Ranks& ranks);
[[nodiscard]] Result<BackendConnection> connect_shm(const Ranks& ranks, Deadline deadline);

[[nodiscard]] Result<BackendConnection> connect_tcp(const Ranks& ranks, Deadline deadline);

/// The version of the Gloo that is built in, or `unsupported` with how to get it.
[[nodiscard]] Result<std::string> probe_gloo();
/// Collectives by the Gloo library over TCP, as a second opinion. The control communicator knows soon when a peer is
/// gone; Gloo itself says no more than that something went wrong. It does not notice that ranks make different calls.
[[nodiscard]] Result<BackendConnection> connect_gloo(const Ranks& ranks, Deadline deadline);

}  // namespace ddrun::collectives
