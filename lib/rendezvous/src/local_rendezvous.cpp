#include "ddrun/rendezvous/local_rendezvous.hpp"

#include "ddrun/base/address.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/rendezvous/assign_ranks.hpp"
#include "ddrun/rendezvous/secret.hpp"
#include "ddrun/store/tcp_server.hpp"
#include "warn_on.hpp"

namespace ddrun::rendezvous {

namespace {

/// "All addresses" counts as a name for this machine: nothing listens on a wildcard. So does what only some programs
/// would take for an address, with brackets or a zone.
enum class HostKind { loopback, address, name };

HostKind kind_of(const std::string& host) {
  if (host.empty() || host == "localhost") return HostKind::loopback;
  const auto address = IpAddress::parse(host);
  if (!address || host.find_first_of("[%") != std::string::npos || address->is_unspecified()) return HostKind::name;
  return address->is_loopback() ? HostKind::loopback : HostKind::address;
}

}  // namespace

Result<LocalEndpoint> choose_local_endpoint(const RendezvousSpec& spec) {
  LocalEndpoint chosen;
  std::string host;
  const bool is_static = spec.backend == "static" && !spec.standalone;
  const bool named = is_static && (!spec.endpoint.empty() || spec.master_port);
  if (named && !spec.endpoint.empty()) {
    const HostPort endpoint = split_host_port(spec.endpoint).value_or(HostPort{spec.endpoint, std::nullopt});
    host = endpoint.host;
    if (!endpoint.port || endpoint.port->empty()) {
      return fail(Errc::invalid_argument,
                  concat("--rdzv-endpoint=", spec.endpoint, " has no port: with --rdzv-backend=static give HOST:PORT"));
    }
    const auto port = parse_integer(*endpoint.port, 0, 65535);
    if (!port)
      return fail(Errc::invalid_argument, concat("--rdzv-endpoint=", spec.endpoint, ": port ", port.error().message));
    chosen.port = static_cast<std::uint16_t>(*port);
  } else if (named) {
    host = spec.master_addr.value_or("127.0.0.1");
    chosen.port = static_cast<std::uint16_t>(*spec.master_port);
  } else if (spec.local_addr) {
    host = *spec.local_addr;
  }
  chosen.listen_on = {"127.0.0.1", "::1"};
  switch (kind_of(host)) {
    case HostKind::loopback:
      chosen.advertised = host.empty() ? "127.0.0.1" : host;
      if (host == "::1") chosen.listen_on = {"::1", "127.0.0.1"};
      else if (host != "localhost" && !host.empty() && host != "127.0.0.1")
        chosen.listen_on.insert(chosen.listen_on.begin(), host);
      break;
    case HostKind::address:
      chosen.advertised = host;
      chosen.listen_on.insert(chosen.listen_on.begin(), host);
      break;
    case HostKind::name: chosen.advertised = "127.0.0.1"; break;
  }
  // Where no endpoint was named, the job needs a name of its own.
  const bool unnamed = is_static && !named && spec.id == "none";
  chosen.run_id = spec.standalone || unnamed || spec.id.empty() ? random_id() : spec.id;
  return chosen;
}

LocalRendezvous::LocalRendezvous(boost::asio::any_io_executor executor, const LaunchSpec& spec, int local_world_size)
    : executor_(std::move(executor)), spec_(spec), local_world_size_(local_world_size) {}

LocalRendezvous::~LocalRendezvous() = default;

Result<void> LocalRendezvous::open(bool with_store) {
  auto endpoint = choose_local_endpoint(spec_.rendezvous);
  if (!endpoint) return tl::unexpected(endpoint.error());
  endpoint_ = std::move(*endpoint);
  store::TcpServerOptions options;
  options.addresses = endpoint_.listen_on;
  options.port = endpoint_.port;
  options.max_memory = spec_.rendezvous.store_max_memory;
  options.on_refusal = warn_on(executor_);
  auto server = store::TcpServer::start(options);
  if (!server) {
    Error error = server.error();
    if (endpoint_.port != 0) {
      error.message += spec_.rendezvous.endpoint.empty() ? " (--master-port)" : " (--rdzv-endpoint)";
    }
    return tl::unexpected(error);
  }
  port_ = (*server)->port();
  if (with_store) store_ = std::move(*server);
  return {};
}

Result<RankAssignment> LocalRendezvous::next_round(int restart_count) {
  if (used_ && store_) {
    if (auto emptied = store_->new_round(); !emptied) return tl::unexpected(emptied.error());
  }
  used_ = true;
  RankAssignment assignment = assign_ranks({{local_world_size_, spec_.role}}).front();
  assignment.run_id = endpoint_.run_id;
  assignment.restart_count = restart_count;
  assignment.max_restarts = spec_.restart.max_restarts;
  assignment.master_addr = endpoint_.advertised;
  assignment.master_port = port_;
  return assignment;
}

}  // namespace ddrun::rendezvous
