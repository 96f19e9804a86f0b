#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "ddrun/base/duration.hpp"
#include "ddrun/collectives/communicator.hpp"
#include "ddrun/store/tcp_client.hpp"
#include "ddrun/store/tcp_server.hpp"

namespace ddrun::allreduce {

/// Who this process is and where the ranks meet, as ddrun and torchrun tell their workers.
struct Place {
  bool alone = false;  ///< no launcher: a group of one
  int rank = 0;
  int size = 1;
  int local_size = 1;  ///< ranks on this machine, as far as is known
  std::string master_address;
  std::uint16_t master_port = 0;
  int restart_count = 0;
  /// The launcher serves the store. Otherwise rank 0 does, as PyTorch's env:// rendezvous has it.
  bool store_is_there = false;
};

/// From RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RESTART_COUNT and
/// TORCHELASTIC_USE_AGENT_STORE. None of the first two: alone. Some but not all that is needed, or nonsense:
/// `invalid_argument`. `get` is getenv, or a test's.
[[nodiscard]] Result<Place> place_from(const std::function<const char*(const char*)>& get);

/// The store as this rank sees it; kept as long as the group works.
struct Meeting {
  std::unique_ptr<store::TcpServer> server;  ///< if this rank serves the store
  std::unique_ptr<store::TcpClient> client;  ///< none if alone
  collectives::Group group;
};

[[nodiscard]] Result<Meeting> meet(const Place& place, Deadline deadline);

}  // namespace ddrun::allreduce
