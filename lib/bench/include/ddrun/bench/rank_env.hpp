#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/environment.hpp"
#include "ddrun/collectives/communicator.hpp"
#include "ddrun/store/tcp_client.hpp"
#include "ddrun/store/tcp_server.hpp"

namespace ddrun::bench {

/// Who this process is and where the rendezvous of the ranks is, as a launcher tells its workers.
struct RankEnv {
  bool is_singleton = false;  ///< no launcher: a group of one
  int rank = 0;
  int size = 1;
  int local_rank = -1;         ///< among those on this machine; -1: not known
  int local_size = 1;          ///< ranks on this machine, as far as is known
  std::string master_address;  ///< where the store is
  std::uint16_t master_port = 0;
  int restart_count = 0;
  /// The launcher serves the store. Otherwise rank 0 does, as PyTorch's env:// rendezvous has it.
  bool launcher_serves_store = false;
};

/// From RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, TORCHELASTIC_RESTART_COUNT and TORCHELASTIC_USE_AGENT_STORE, as
/// ddrun and torchrun set them; without the first two from those of Open MPI, MPICH, Intel MPI, MVAPICH2 or a Slurm
/// step. None of all these: alone. A group of several needs MASTER_ADDR and MASTER_PORT. Some but not all that is
/// needed, or nonsense: `invalid_argument`.
[[nodiscard]] Result<RankEnv> rank_env_from(const Environment& variables);

/// The store as this rank sees it; kept as long as the group works.
struct Rendezvous {
  std::unique_ptr<store::TcpServer> server;  ///< if this rank serves the store
  std::unique_ptr<store::TcpClient> client;  ///< none if alone
  collectives::Group group;
};

/// Blocks until the store is reached. `invalid_argument` if ranks differ in WORLD_SIZE, or two are the same.
[[nodiscard]] Result<Rendezvous> rendezvous(const RankEnv& env, Deadline deadline);

}  // namespace ddrun::bench
