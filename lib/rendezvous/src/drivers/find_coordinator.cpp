#include "ddrun/rendezvous/find_coordinator.hpp"

#include <sys/utsname.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "ddrun/base/address.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/helper/host_lookup.hpp"
#include "ddrun/rendezvous/secret.hpp"

namespace ddrun::rendezvous {

namespace {

constexpr std::uint16_t static_port = 29500;  // torchrun's
constexpr std::uint16_t c10d_port = 29400;

/// Bounds how long an unresponsive name server delays signals to the agent.
constexpr std::chrono::seconds resolve_timeout{5};

std::vector<std::string> resolve_name(const std::string& name) {
  return helper::look_up_host(name, resolve_timeout).value_or(std::vector<std::string>());
}

/// Which machine an endpoint's host means.
struct EndpointTarget {
  enum class Kind { self, other, ambiguous };
  Kind kind = Kind::other;
  std::vector<std::string> addresses;  ///< if the name was resolved
  bool is_own_name = false;            ///< even if it resolves to another machine

  [[nodiscard]] std::string addresses_text() const {
    std::string text;
    for (const std::string& address : addresses) text += (text.empty() ? "" : ", ") + address;
    return text;
  }
};

bool is_local_address(const std::optional<IpAddress>& address, const LocalMachine& machine) {
  return address && (address->is_loopback() || std::find(machine.addresses.begin(), machine.addresses.end(),
                                                         *address) != machine.addresses.end());
}

EndpointTarget resolve_endpoint(const std::string& host, const LocalMachine& machine) {
  using Kind = EndpointTarget::Kind;
  if (host == "localhost") return {Kind::self, {}, true};
  if (const auto address = IpAddress::parse(host))
    return {is_local_address(address, machine) ? Kind::self : Kind::other, {}};
  EndpointTarget target;
  target.is_own_name = host == machine.host_name ||
                       (machine.host_name.starts_with(host + ".") && names_same_host(host, machine.host_name));
  target.addresses = machine.resolve(host);
  const auto own_count = std::count_if(target.addresses.begin(), target.addresses.end(), [&](const std::string& text) {
    return is_local_address(IpAddress::parse(text), machine);
  });
  if (own_count == static_cast<std::ptrdiff_t>(target.addresses.size())) {
    // This machine's own name may have no address. If it has some, all of them count: machines cloned from one image
    // share a name.
    target.kind = own_count > 0 || target.is_own_name ? Kind::self : Kind::other;
  } else if (own_count > 0) {
    target.kind = Kind::ambiguous;
  }
  return target;
}

/// Each machine with one of the addresses would run a coordinator.
tl::unexpected<Error> ambiguous_name_error(const std::string& host, const EndpointTarget& target,
                                           const RendezvousSpec& spec) {
  return fail(Errc::invalid_argument,
              concat("the endpoint's name ", host, " has several addresses (", target.addresses_text(),
                     "), and not all are this machine's: name one machine, or say which one runs the coordinator: ",
                     spec.backend == "static" ? "--node-rank=0 there, --node-rank=N elsewhere"
                                              : "--rdzv-conf=is_host=true there, is_host=false elsewhere"));
}

std::string foreign_name_warning(const std::string& host, const EndpointTarget& target) {
  return concat(
      "this machine is called ", host, ", but that name means ", target.addresses_text(),
      ", which it does not have: it does not run the coordinator (--rdzv-conf=is_host=true says that it does)");
}

Result<Endpoint> endpoint_of(const std::string& text, std::uint16_t default_port) {
  const HostPort typed = split_host_port(text).value_or(HostPort{text, std::nullopt});
  Endpoint endpoint{typed.host, default_port};
  if (!typed.port || typed.port->empty()) return endpoint;
  const auto port = parse_integer(*typed.port, 1, 65535);
  if (!port) {
    return fail(Errc::invalid_argument, concat("--rdzv-endpoint=", text, ": port ", port.error().message,
                                               "; with several machines all have to know it"));
  }
  endpoint.port = static_cast<std::uint16_t>(*port);
  return endpoint;
}

bool is_loopback_endpoint(const Endpoint& endpoint) {
  const auto address = IpAddress::parse(endpoint.host);
  return endpoint.host == "localhost" || (address && address->is_loopback());
}

Result<std::vector<Endpoint>> endpoints_of(const RendezvousSpec& spec) {
  if (!spec.coordinators.empty()) return spec.coordinators;
  const bool is_static = spec.backend == "static";
  const auto default_port = static_cast<std::uint16_t>(is_static ? spec.master_port.value_or(static_port) : c10d_port);
  Endpoint endpoint;
  if (!spec.endpoint.empty()) {
    endpoint = TRY(endpoint_of(spec.endpoint, default_port));
  } else if (spec.master_addr) {
    endpoint = {*spec.master_addr, default_port};
  }
  if (endpoint.host.empty()) {
    return fail(Errc::invalid_argument,
                "a job on several machines needs a place where its agents meet, the same on each: "
                "--rdzv-endpoint=HOST:PORT, with the name or address of one of them");
  }
  if (endpoint.port == 0) {
    return fail(Errc::invalid_argument, "with several machines --master-port=0 cannot be: all have to know the port");
  }
  return std::vector<Endpoint>{endpoint};
}

}  // namespace

LocalMachine this_machine() {
  LocalMachine machine;
  utsname name{};
  if (::uname(&name) == 0) machine.host_name = name.nodename;
  machine.addresses = own_addresses();
  machine.resolve = resolve_name;
  return machine;
}

void nearest_first(std::vector<Endpoint>& endpoints, const std::vector<IpAddress>& own_addresses) {
  const auto common_bits = [&](const Endpoint& endpoint) {
    int longest = -1;
    const auto address = IpAddress::parse(endpoint.host);
    for (const IpAddress& own : own_addresses) {
      if (address && !own.is_loopback()) longest = std::max(longest, own.common_bits(*address));
    }
    return longest;
  };
  std::stable_sort(endpoints.begin(), endpoints.end(),
                   [&](const Endpoint& a, const Endpoint& b) { return common_bits(a) > common_bits(b); });
}

Result<CoordinatorLocation> find_coordinator(const RendezvousSpec& spec, const LocalMachine& machine) {
  CoordinatorLocation location;
  location.candidates = TRY(endpoints_of(spec));
  location.loopback_only = std::all_of(location.candidates.begin(), location.candidates.end(), is_loopback_endpoint);
  const bool by_rank = spec.backend == "static" && spec.node_rank.has_value();
  if (spec.is_host) {
    location.is_local = *spec.is_host;
    location.is_explicit = true;
  } else if (by_rank && spec.coordinators.empty()) {
    location.is_local = *spec.node_rank == 0;
    location.is_explicit = true;
  } else {
    std::optional<std::string> asked;
    for (const Endpoint& endpoint : location.candidates) {  // Slurm's candidates differ by port only
      if (asked == endpoint.host) continue;
      asked = endpoint.host;
      const EndpointTarget target = resolve_endpoint(endpoint.host, machine);
      if (target.kind == EndpointTarget::Kind::ambiguous) return ambiguous_name_error(endpoint.host, target, spec);
      if (target.kind == EndpointTarget::Kind::self) location.is_local = true;
      else if (target.is_own_name) location.warning = foreign_name_warning(endpoint.host, target);
    }
  }
  for (const Endpoint& endpoint : location.candidates) {
    if (std::find(location.ports.begin(), location.ports.end(), endpoint.port) == location.ports.end()) {
      location.ports.push_back(endpoint.port);
    }
  }
  return location;
}

namespace {

/// A wildcard counts as a name, as nothing listens on it; so does an address with brackets or a zone, which only some
/// programs accept.
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
  // Without an endpoint the run id must be unique.
  const bool unnamed = is_static && !named && spec.id == "none";
  chosen.run_id = spec.standalone || unnamed || spec.id.empty() ? random_id() : spec.id;
  return chosen;
}

std::string reachable_address(const std::string& wanted, const std::vector<std::string>& listened) {
  const auto wanted_address = IpAddress::parse(wanted);
  std::vector<std::string> hosts;
  for (const std::string& text : listened) hosts.push_back(split_host_port(text).value_or(HostPort{}).host);
  const bool is_listening = std::any_of(
      hosts.begin(), hosts.end(), [&](const std::string& host) { return IpAddress::parse(host) == wanted_address; });
  return !wanted_address || is_listening || hosts.empty() ? wanted : hosts.front();
}

}  // namespace ddrun::rendezvous
