#include "ddrun/rendezvous/coordinator_server.hpp"

#include "coordinator_loop.hpp"
#include "ddrun/base/listener.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::rendezvous {

CoordinatorServer::CoordinatorServer(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
CoordinatorServer::~CoordinatorServer() = default;

Result<std::unique_ptr<CoordinatorServer>> CoordinatorServer::start(const CoordinatorServerOptions& options) {
  const auto addresses = options.addresses.empty() ? std::vector<std::string>{"0.0.0.0", "::"} : options.addresses;
  Result<std::vector<Listener>> listeners = fail(Errc::invalid_argument, "no port to listen on; give at least one");
  std::vector<std::string> taken;
  for (const auto port : options.ports) {
    listeners = open_listeners(addresses, port);
    if (listeners || listeners.error().cause != std::errc::address_in_use) break;
    taken.push_back(concat(port));
  }
  if (!listeners) {
    if (taken.size() < 2 || taken.size() < options.ports.size()) return tl::unexpected(std::move(listeners.error()));
    return fail(Errc::unavailable,
                concat("cannot listen for agents: ports ", join(taken, ", "), " are all in use by other programs"),
                listeners.error().cause);
  }
  auto loop = std::make_unique<Loop>(std::move(*listeners), options);
  if (auto ok = loop->start(); !ok) return tl::unexpected(std::move(ok.error()));
  return std::unique_ptr<CoordinatorServer>(new CoordinatorServer(std::move(loop)));
}

std::uint16_t CoordinatorServer::port() const { return loop_->port(); }
std::vector<std::string> CoordinatorServer::addresses() const { return loop_->addresses(); }
bool CoordinatorServer::wait_done(Deadline deadline) const { return loop_->wait_done(deadline); }
CoordinatorServerStats CoordinatorServer::stats() const { return loop_->stats(); }

}  // namespace ddrun::rendezvous
