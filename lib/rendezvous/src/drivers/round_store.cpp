#include "round_store.hpp"

#include <algorithm>
#include <utility>

#include "ddrun/base/text.hpp"
#include "warn_on.hpp"

namespace ddrun::rendezvous {

Result<std::uint16_t> RoundStore::open(const Open& order, std::uint16_t port) {
  std::vector<std::string> addresses{order.address};
  const auto address = IpAddress::parse(order.address);
  if (address && address->is_link_local()) {
    return fail(
        Errc::invalid_argument,
        concat("no address is known by which the other machines reach this one but ", order.address,
               ", which means nothing without an interface; give one (--local-addr), or the endpoint by another"));
  }
  // The store takes an empty list as "all".
  if (order.addresses.empty()) {
    return fail(Errc::protocol, "the coordinator does not say which machines may use it");
  }
  const bool ours =
      address && (address->is_loopback() || std::find(machine_addresses_.begin(), machine_addresses_.end(), *address) !=
                                                machine_addresses_.end());
  // A name or a translated address does not tell where connections arrive.
  if (!ours) addresses = {"0.0.0.0", "::"};
  if (server_ && addresses == listens_on_ && (port == 0 || port == server_->port())) {
    if (auto emptied = server_->new_round(order.addresses); !emptied) return tl::unexpected(emptied.error());
    return server_->port();
  }
  server_.reset();
  store::TcpServerOptions options;
  options.addresses = addresses;
  options.port = port;
  options.max_memory = max_memory_;
  options.allowed_peers = order.addresses;
  options.on_refusal = warn_on(executor_);
  auto started = store::TcpServer::start(options);
  if (!started) return tl::unexpected(started.error());
  port = (*started)->port();
  if (with_store_) {
    server_ = std::move(*started);
    listens_on_ = std::move(addresses);
  }
  return port;
}

}  // namespace ddrun::rendezvous
