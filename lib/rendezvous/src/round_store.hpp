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

/// The worker store of a job on several machines, while it lies with this agent: empty for each round, open to the
/// machines of the round only, and listening on the address that workers are told and nowhere else.
class RoundStore {
 public:
  /// Whom the store cuts off is told as a warning on `executor`, whose context must outlive this object.
  /// `machine_addresses`: of this machine. Without `with_store` a worker will listen there itself: a free port is
  /// looked for and given up again.
  RoundStore(boost::asio::any_io_executor executor, std::vector<IpAddress> machine_addresses, std::uint64_t max_memory,
             bool with_store)
      : executor_(std::move(executor)),
        machine_addresses_(std::move(machine_addresses)),
        max_memory_(max_memory),
        with_store_(with_store) {}

  /// Opens it for a round and gives its port. Blocks for well under a millisecond. Fails with `unavailable` if it
  /// cannot listen, and where the order leaves open who may come or where workers find it.
  Result<std::uint16_t> open(const Open& order);

  /// Another node has it now.
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
