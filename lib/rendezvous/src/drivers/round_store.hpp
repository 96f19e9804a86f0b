#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ddrun/base/address.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "ddrun/store/tcp_server.hpp"

namespace ddrun::rendezvous {

/// The worker store of a job on several machines, on the node of rank 0: empty for each round, accessible to the
/// machines of the round only, and listening on the advertised address only.
class RoundStore {
 public:
  /// Rejected clients are reported as warnings on `executor`, whose context must outlive this object.
  /// `machine_addresses`: of this machine. Without `with_store` only a free port is chosen, for a worker to listen on.
  RoundStore(boost::asio::any_io_executor executor, std::vector<IpAddress> machine_addresses, std::uint64_t max_memory,
             bool with_store)
      : executor_(std::move(executor)),
        machine_addresses_(std::move(machine_addresses)),
        max_memory_(max_memory),
        with_store_(with_store) {}

  /// Opens it for a round, at that port, 0: any; returns the port. Blocks for less than a millisecond. Errors:
  /// `unavailable` if it cannot listen; `invalid_argument` or `protocol` for an order without usable addresses.
  Result<std::uint16_t> open(const Open& order, std::uint16_t port);

  /// Another node has the store.
  void close() { server_.reset(); }

 private:
  boost::asio::any_io_executor executor_;
  std::vector<IpAddress> machine_addresses_;
  std::uint64_t max_memory_;
  bool with_store_;
  std::vector<std::string> listens_on_;
  std::unique_ptr<store::TcpServer> server_;
};

}  // namespace ddrun::rendezvous
