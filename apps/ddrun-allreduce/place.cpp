#include "place.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <climits>
#include <vector>

#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/store/resolve.hpp"

namespace ddrun::allreduce {

namespace {

constexpr const char* kHowToStart = "start it with a launcher, for example: ddrun --nproc-per-node=4 ddrun-allreduce";

/// The address of this machine from which packets to `server` ("10.0.0.1:29500", "[::1]:29500") leave; others that
/// reach the store reach us there too. Nothing is sent for this.
std::string own_address(const std::string& server) {
  std::string host = server.substr(0, server.rfind(':'));
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  const sockaddr* target = nullptr;
  socklen_t length = 0;
  if (inet_pton(AF_INET, host.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(9);
    target = reinterpret_cast<const sockaddr*>(&v4);
    length = sizeof(v4);
  } else if (inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(9);
    target = reinterpret_cast<const sockaddr*>(&v6);
    length = sizeof(v6);
  } else {
    return "127.0.0.1";
  }
  const UniqueFd probe(socket(target->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own{};
  socklen_t own_length = sizeof(own);
  if (!probe || connect(probe.get(), target, length) != 0 ||
      getsockname(probe.get(), reinterpret_cast<sockaddr*>(&own), &own_length) != 0) {
    return host;
  }
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* const bytes = own.ss_family == AF_INET
                                ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in&>(own).sin_addr)
                                : static_cast<const void*>(&reinterpret_cast<const sockaddr_in6&>(own).sin6_addr);
  return inet_ntop(own.ss_family, bytes, text.data(), text.size()) != nullptr ? text.data() : host;
}

Result<std::unique_ptr<store::TcpServer>> serve(const Place& place) {
  store::TcpServerOptions options;
  options.port = place.master_port;
  auto addresses = store::resolve(place.master_address);
  if (!addresses) return tl::unexpected(addresses.error());
  options.addresses = std::move(*addresses);
  return store::TcpServer::start(options);
}

}  // namespace

Result<Place> place_from(const std::function<const char*(const char*)>& get) {
  const auto text = [&](const char* name) {
    const char* const value = get(name);
    return std::string(value == nullptr ? "" : value);
  };
  const auto number = [&](const char* name, int low, int high, int otherwise) -> Result<int> {
    const std::string value = text(name);
    if (value.empty()) return otherwise;
    const auto parsed = parse_integer(value, low, high);
    if (!parsed) return fail(Errc::invalid_argument, concat(name, "=", value, ": ", parsed.error().message));
    return static_cast<int>(*parsed);
  };
  Place place;
  if (text("RANK").empty() && text("WORLD_SIZE").empty()) {
    place.alone = true;
    return place;
  }
  std::vector<std::string> missing;
  for (const char* name : {"RANK", "WORLD_SIZE"}) {
    if (text(name).empty()) missing.emplace_back(name);
  }
  if (text("WORLD_SIZE") != "1") {
    for (const char* name : {"MASTER_ADDR", "MASTER_PORT"}) {
      if (text(name).empty()) missing.emplace_back(name);
    }
  }
  if (!missing.empty()) {
    return fail(Errc::invalid_argument,
                concat(join(missing, ", "), missing.size() == 1 ? " is" : " are", " not set: ", kHowToStart));
  }
  constexpr int kMost = 1'000'000;
  const auto size = number("WORLD_SIZE", 1, kMost, 1);
  if (!size) return tl::unexpected(size.error());
  const auto rank = number("RANK", 0, *size - 1, 0);
  if (!rank) return tl::unexpected(rank.error());
  const auto local_size = number("LOCAL_WORLD_SIZE", 1, *size, *size);
  if (!local_size) return tl::unexpected(local_size.error());
  const auto port = number("MASTER_PORT", 1, 65535, 0);
  if (!port) return tl::unexpected(port.error());
  const auto restarts = number("TORCHELASTIC_RESTART_COUNT", 0, INT_MAX, 0);
  if (!restarts) return tl::unexpected(restarts.error());
  place.rank = *rank;
  place.size = *size;
  place.local_size = *local_size;
  place.master_address = text("MASTER_ADDR");
  place.master_port = static_cast<std::uint16_t>(*port);
  place.restart_count = *restarts;
  place.store_is_there = text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  return place;
}

Result<Meeting> meet(const Place& place, Deadline deadline) {
  Meeting meeting;
  meeting.group.rank = place.rank;
  meeting.group.size = place.size;
  // Under torchrun the store outlives an attempt; what the attempt before left in it must not be taken for ours.
  meeting.group.prefix = concat("ddrun-allreduce/", place.restart_count, '/');
  if (place.size == 1) return meeting;
  const std::string where = concat("the store at ", place.master_address, " port ", place.master_port);
  if (!place.store_is_there && place.rank == 0) {
    auto server = serve(place);
    if (!server) return fail(server.error().code, concat("cannot serve ", where, ": ", server.error().message));
    meeting.server = std::move(*server);
  }
  auto client = store::connect_by_name(place.master_address, place.master_port, deadline);
  if (!client) return fail(client.error().code, concat("cannot reach ", where, ": ", client.error().message));
  meeting.client = std::move(*client);
  meeting.group.store = meeting.client.get();
  meeting.group.address = own_address(meeting.client->server());
  return meeting;
}

}  // namespace ddrun::allreduce
