#include "ddrun/rendezvous/find_coordinator.hpp"

#include <sys/utsname.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>

#include "ddrun/base/address.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/base/text.hpp"
#include "host_lookup.hpp"

namespace ddrun::rendezvous {

namespace {

constexpr std::uint16_t static_port = 29500;  // torchrun's
constexpr std::uint16_t c10d_port = 29400;

/// A name server that does not answer must not keep the agent from being stopped.
constexpr std::chrono::seconds resolver_limit{5};

std::vector<std::string> resolve_name(const std::string& name) {
  return look_up_host(name, resolver_limit).value_or(std::vector<std::string>());
}

std::string short_name(const std::string& name) { return name.substr(0, name.find('.')); }

bool names_machine(const std::string& host, const MachineFacts& machine) {
  if (host == "localhost" || host == machine.host_name) return true;
  const auto is_ours = [&](const std::optional<IpAddress>& address) {
    return address && (address->is_loopback() || std::find(machine.addresses.begin(), machine.addresses.end(),
                                                           *address) != machine.addresses.end());
  };
  if (const auto address = IpAddress::parse(host)) return is_ours(address);
  // A short name that is ours is us, whatever a name server makes of it.
  if (host.find('.') == std::string::npos && host == short_name(machine.host_name)) return true;
  const auto addresses = machine.resolve(host);
  return std::any_of(addresses.begin(), addresses.end(),
                     [&](const std::string& text) { return is_ours(IpAddress::parse(text)); });
}

Result<std::vector<Endpoint>> endpoints_of(const RendezvousSpec& spec) {
  if (!spec.coordinators.empty()) return spec.coordinators;
  const bool is_static = spec.backend == "static";
  const auto default_port = static_cast<std::uint16_t>(is_static ? spec.master_port.value_or(static_port) : c10d_port);
  Endpoint endpoint;
  if (!spec.endpoint.empty()) {
    const HostPort typed = split_host_port(spec.endpoint).value_or(HostPort{spec.endpoint, std::nullopt});
    endpoint = {typed.host, default_port};
    if (typed.port && !typed.port->empty()) {
      const auto port = parse_integer(*typed.port, 1, 65535);
      if (!port) {
        return fail(Errc::invalid_argument, concat("--rdzv-endpoint=", spec.endpoint, ": port ", port.error().message,
                                                   "; with several machines all have to know it"));
      }
      endpoint.port = static_cast<std::uint16_t>(*port);
    }
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

MachineFacts this_machine() {
  MachineFacts facts;
  utsname name{};
  if (::uname(&name) == 0) facts.host_name = name.nodename;
  facts.addresses = own_addresses();
  facts.resolve = resolve_name;
  return facts;
}

Result<CoordinatorLocation> find_coordinator(const RendezvousSpec& spec, const MachineFacts& machine) {
  auto endpoints = endpoints_of(spec);
  if (!endpoints) return tl::unexpected(endpoints.error());
  CoordinatorLocation location;
  location.candidates = std::move(*endpoints);
  location.loopback_only =
      std::all_of(location.candidates.begin(), location.candidates.end(), [](const Endpoint& endpoint) {
        const auto address = IpAddress::parse(endpoint.host);
        return endpoint.host == "localhost" || (address && address->is_loopback());
      });
  const bool by_rank = spec.backend == "static" && spec.node_rank.has_value();
  if (spec.is_host) {
    location.is_here = *spec.is_host;
    location.is_certain = true;
  } else if (by_rank && spec.coordinators.empty()) {
    location.is_here = *spec.node_rank == 0;
    location.is_certain = true;
  } else {
    std::string last_asked;
    bool last_answer = false;
    for (const Endpoint& endpoint : location.candidates) {  // Slurm's differ in their ports only
      if (endpoint.host != last_asked) last_answer = names_machine(last_asked = endpoint.host, machine);
      if (last_answer) location.is_here = true;
    }
  }
  for (const Endpoint& endpoint : location.candidates) {
    if (std::find(location.ports.begin(), location.ports.end(), endpoint.port) == location.ports.end()) {
      location.ports.push_back(endpoint.port);
    }
  }
  return location;
}

}  // namespace ddrun::rendezvous
