#include "ddrun/rendezvous/local_rendezvous.hpp"

#include <arpa/inet.h>
#include <sys/random.h>

#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/rendezvous/assign_ranks.hpp"
#include "ddrun/store/tcp_server.hpp"

namespace ddrun::rendezvous {

namespace {

/// A random UUID (version 4), as torchrun uses for a job that was given no name.
std::string random_id() {
  unsigned char bytes[16];
  if (::getrandom(bytes, sizeof bytes, 0) != sizeof bytes) {
    for (auto& byte : bytes)
      byte = static_cast<unsigned char>(Clock::now().time_since_epoch().count() >> (&byte - bytes));
  }
  bytes[6] = static_cast<unsigned char>((bytes[6] & 0x0f) | 0x40);
  bytes[8] = static_cast<unsigned char>((bytes[8] & 0x3f) | 0x80);
  std::string text;
  constexpr char digits[] = "0123456789abcdef";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits[bytes[i] >> 4];
    text += digits[bytes[i] & 15];
  }
  return text;
}

struct HostPort {
  std::string host;
  std::string port;  ///< empty if there is none
};

/// "host", "host:port", "[v6]:port", "v6".
HostPort split_endpoint(const std::string& endpoint) {
  if (endpoint.starts_with('[')) {
    const std::size_t close = endpoint.find(']');
    if (close != std::string::npos) {
      const std::string rest = endpoint.substr(close + 1);
      if (rest.empty() || rest.starts_with(':')) {
        return {endpoint.substr(1, close - 1), rest.empty() ? rest : rest.substr(1)};
      }
    }
  }
  const std::size_t colon = endpoint.find(':');
  if (colon == std::string::npos || endpoint.find(':', colon + 1) != std::string::npos) return {endpoint, ""};
  return {endpoint.substr(0, colon), endpoint.substr(colon + 1)};
}

/// "All addresses" counts as a name for this machine: nothing listens on a wildcard.
enum class HostKind { loopback, address, name };

HostKind kind_of(const std::string& host) {
  in_addr v4{};
  in6_addr v6{};
  if (host.empty() || host == "localhost") return HostKind::loopback;
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) {
    if (v4.s_addr == INADDR_ANY) return HostKind::name;
    return (ntohl(v4.s_addr) >> 24) == 127 ? HostKind::loopback : HostKind::address;
  }
  if (::inet_pton(AF_INET6, host.c_str(), &v6) == 1) {
    if (IN6_IS_ADDR_UNSPECIFIED(&v6)) return HostKind::name;
    return IN6_IS_ADDR_LOOPBACK(&v6) ? HostKind::loopback : HostKind::address;
  }
  return HostKind::name;
}

}  // namespace

Result<MeetingPlace> choose_meeting_place(const RendezvousSpec& spec) {
  MeetingPlace place;
  std::string host;
  const bool is_static = spec.backend == "static" && !spec.standalone;
  const bool named = is_static && (!spec.endpoint.empty() || spec.master_port);
  if (named && !spec.endpoint.empty()) {
    const HostPort endpoint = split_endpoint(spec.endpoint);
    host = endpoint.host;
    if (endpoint.port.empty()) {
      return fail(Errc::invalid_argument,
                  concat("--rdzv-endpoint=", spec.endpoint, " has no port: with --rdzv-backend=static give HOST:PORT"));
    }
    const auto port = parse_integer(endpoint.port, 0, 65535);
    if (!port)
      return fail(Errc::invalid_argument, concat("--rdzv-endpoint=", spec.endpoint, ": port ", port.error().message));
    place.port = static_cast<std::uint16_t>(*port);
  } else if (named) {
    host = spec.master_addr.value_or("127.0.0.1");
    place.port = static_cast<std::uint16_t>(*spec.master_port);
  } else if (spec.local_addr) {
    host = *spec.local_addr;
  }
  place.listen_on = {"127.0.0.1", "::1"};
  switch (kind_of(host)) {
    case HostKind::loopback:
      place.advertised = host.empty() ? "127.0.0.1" : host;
      if (host == "::1") place.listen_on = {"::1", "127.0.0.1"};
      else if (host != "localhost" && !host.empty() && host != "127.0.0.1")
        place.listen_on.insert(place.listen_on.begin(), host);
      break;
    case HostKind::address:
      place.advertised = host;
      place.listen_on.insert(place.listen_on.begin(), host);
      break;
    case HostKind::name: place.advertised = "127.0.0.1"; break;
  }
  // Where nobody named a meeting place, the job needs a name of its own.
  const bool unnamed = is_static && !named && spec.id == "none";
  place.run_id = spec.standalone || unnamed ? random_id() : spec.id;
  return place;
}

LocalRendezvous::LocalRendezvous(const LaunchSpec& spec, int local_world_size)
    : spec_(spec), local_world_size_(local_world_size) {}

LocalRendezvous::~LocalRendezvous() = default;

Result<void> LocalRendezvous::open(bool with_store) {
  auto place = choose_meeting_place(spec_.rendezvous);
  if (!place) return tl::unexpected(place.error());
  place_ = std::move(*place);
  store::TcpServerOptions options;
  options.addresses = place_.listen_on;
  options.port = place_.port;
  options.max_memory = spec_.rendezvous.store_max_memory;
  options.on_refusal = [](const std::string& text) { say(Level::warning, text); };
  auto server = store::TcpServer::start(options);
  if (!server) {
    Error error = server.error();
    if (place_.port != 0) {
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
  assignment.run_id = place_.run_id;
  assignment.restart_count = restart_count;
  assignment.max_restarts = spec_.restart.max_restarts;
  assignment.master_addr = place_.advertised;
  assignment.master_port = port_;
  return assignment;
}

}  // namespace ddrun::rendezvous
