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

/// This process's rank and the address of the store, from the launcher's environment.
struct RankEnv {
  bool is_singleton = false;  ///< no launcher: a group of one
  int rank = 0;
  int size = 1;
  int local_rank = -1;         ///< rank among those on this machine; -1: unknown
  int local_size = 1;          ///< ranks on this machine; `size` if unknown
  std::string master_address;  ///< of the store
  std::uint16_t master_port = 0;
  int restart_count = 0;
  /// Otherwise rank 0 serves the store, as in PyTorch's env:// rendezvous.
  bool launcher_serves_store = false;
};

/// Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, TORCHELASTIC_RESTART_COUNT and TORCHELASTIC_USE_AGENT_STORE,
/// as set by ddrun and torchrun; without the first two the variables of Open MPI, MPICH, Intel MPI, MVAPICH2 or a Slurm
/// step. With none of these the process runs as a singleton. Larger groups need MASTER_ADDR and MASTER_PORT.
/// `invalid_argument` if required variables are missing or invalid.
[[nodiscard]] Result<RankEnv> rank_env_from(const Environment& variables);

/// The connection to the store and the group. Must outlive the communicators of the group.
struct Rendezvous {
  std::unique_ptr<store::TcpServer> server;  ///< null unless this rank serves the store
  std::unique_ptr<store::TcpClient> client;  ///< null for a group of one
  collectives::Group group;
};

/// Connects to the store, and serves it if this rank has to. Blocks. `invalid_argument` if ranks differ in WORLD_SIZE
/// or have the same RANK.
[[nodiscard]] Result<Rendezvous> rendezvous(const RankEnv& env, Deadline deadline);

}  // namespace ddrun::bench
