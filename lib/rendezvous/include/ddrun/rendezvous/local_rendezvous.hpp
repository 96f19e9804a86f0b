#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ddrun/base/result.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::store {
class TcpServer;
}

namespace ddrun::rendezvous {

/// Where the workers of a job on one machine find their store, as decided from the options alone.
struct LocalEndpoint {
  std::string advertised;              ///< MASTER_ADDR
  std::vector<std::string> listen_on;  ///< addresses, never a wildcard
  std::uint16_t port = 0;              ///< 0: any free one
  std::string run_id;                  ///< TORCHELASTIC_RUN_ID
};

/// Pure but for the random run id. A host name other than localhost is not resolved: on one machine it can only
/// mean this one, and 127.0.0.1 is advertised. Fails with `invalid_argument` for an endpoint that cannot be meant.
[[nodiscard]] Result<LocalEndpoint> choose_local_endpoint(const RendezvousSpec& spec);

/// The rendezvous of a job on one machine: nobody to wait for, so a round is complete at once. It owns the worker
/// store, on the loopback unless the user named another address of this machine.
class LocalRendezvous {
 public:
  /// Whom the store cuts off is told as a warning on `executor`, whose context must outlive this object.
  LocalRendezvous(boost::asio::any_io_executor executor, const LaunchSpec& spec, int local_world_size);
  ~LocalRendezvous();

  /// Opens the worker store. Fails with `unavailable` if the wanted port is taken. Before any other call. Without
  /// `with_store` (TORCH_DISABLE_SHARE_RDZV_TCP_STORE) a worker will listen at the endpoint, and only a free
  /// port is looked for.
  Result<void> open(bool with_store = true);

  [[nodiscard]] const std::string& run_id() const { return endpoint_.run_id; }

  /// The next round: an empty key space, nobody of the round before connected. Blocks for well under a millisecond.
  /// Fails with `unavailable` if the store can no longer be listened to.
  Result<RankAssignment> next_round(int restart_count);

 private:
  boost::asio::any_io_executor executor_;
  const LaunchSpec& spec_;
  int local_world_size_;
  LocalEndpoint endpoint_;
  std::unique_ptr<store::TcpServer> store_;
  bool used_ = false;
  std::uint16_t port_ = 0;
};

}  // namespace ddrun::rendezvous
