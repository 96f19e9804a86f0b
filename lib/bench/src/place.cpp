#include "ddrun/bench/place.hpp"

#include <sys/socket.h>

#include <climits>
#include <vector>

#include "ddrun/base/address.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/cluster/started_rank.hpp"
#include "ddrun/store/resolve.hpp"

namespace ddrun::bench {

namespace {

constexpr const char* how_to_start = "start it with a launcher, for example: ddrun --nproc-per-node=4 ddrun-allreduce";

/// The address of this machine from which packets to `server` ("10.0.0.1:29500", "[::1]:29500") leave; others that
/// reach the store reach us there too. Nothing is sent for this.
std::string own_address(const std::string& server) {
  constexpr std::uint16_t any_port = 9;
  const auto host = split_host_port(server);
  const auto target = host ? SocketAddress::parse(host->host, any_port) : std::nullopt;
  if (!target) return "127.0.0.1";
  const UniqueFd probe(socket(target->family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!probe || connect(probe.get(), target->get(), target->size) != 0) return host->host;
  const auto own = local_socket_address(probe.get());
  const auto parts = own ? split_host_port(own->text()) : std::nullopt;
  return parts ? parts->host : host->host;
}

Result<std::unique_ptr<store::TcpServer>> serve(const Place& place) {
  store::TcpServerOptions options;
  options.port = place.master_port;
  auto addresses = store::resolve(place.master_address);
  if (!addresses) return tl::unexpected(addresses.error());
  options.addresses = std::move(*addresses);
  return store::TcpServer::start(options);
}

/// The environment as texts and numbers.
class Reader {
 public:
  explicit Reader(const Environment& variables) : variables_(variables) {}

  [[nodiscard]] std::string text(std::string_view name) const { return std::string(variables_.get(name).value_or("")); }
  [[nodiscard]] bool has(std::string_view name) const { return variables_.get(name).has_value(); }

  /// Of those of `names` that are not set, or empty.
  [[nodiscard]] Result<void> need(const std::vector<std::string_view>& names, std::string_view what_to_do) const {
    std::vector<std::string> missing;
    for (const std::string_view name : names) {
      if (!has(name)) missing.emplace_back(name);
    }
    if (missing.empty()) return {};
    return fail(Errc::invalid_argument,
                concat(join(missing, ", "), missing.size() == 1 ? " is" : " are", " not set: ", what_to_do));
  }

  /// Sets `number` if the variable is there.
  template <class Number>
  [[nodiscard]] Result<void> take(std::string_view name, int low, int high, Number& number) const {
    const auto value = variables_.get(name);
    if (!value) return {};
    const auto parsed = parse_integer(*value, low, high);
    if (!parsed) return fail(Errc::invalid_argument, concat(name, "=", *value, ": ", parsed.error().message));
    number = static_cast<Number>(*parsed);
    return {};
  }

 private:
  const Environment& variables_;
};

Result<void> take_ranks(Place& place, const Reader& read) {
  std::vector<std::string_view> needed{"RANK", "WORLD_SIZE"};
  if (read.text("WORLD_SIZE") != "1") needed.insert(needed.end(), {"MASTER_ADDR", "MASTER_PORT"});
  constexpr int max_ranks = 1'000'000;
  return read.need(needed, how_to_start)
      .and_then([&] { return read.take("WORLD_SIZE", 1, max_ranks, place.size); })
      .and_then([&] { return read.take("RANK", 0, place.size - 1, place.rank); })
      .and_then([&] {
        place.local_size = place.size;
        return read.take("LOCAL_WORLD_SIZE", 1, place.size, place.local_size);
      })
      .and_then([&] { return read.take("LOCAL_RANK", 0, place.local_size - 1, place.local_rank); })
      .and_then([&] { return read.take("TORCHELASTIC_RESTART_COUNT", 0, INT_MAX, place.restart_count); });
}

/// mpirun and srun say who a rank is, but not where the ranks can meet.
Result<void> take_started(Place& place, const cluster::StartedRank& started, const Reader& read) {
  place.rank = started.rank;
  place.size = started.size;
  place.local_rank = started.local_rank;
  place.local_size = started.local_size;
  if (started.size == 1) return {};
  return read.need({"MASTER_ADDR", "MASTER_PORT"},
                   concat(started.launcher, " does not say where ranks can meet; start it with ", started.command,
                          " ddrun-allreduce, with an address of rank 0's machine and a port that is free there"));
}

/// What all ranks can only do wrong together; each says so itself, as no other would notice before the time is up.
Result<void> check_in(const Place& place, const Meeting& meeting, Deadline deadline) {
  const std::string& prefix = meeting.group.prefix;
  const auto size = meeting.client->compare_set(prefix + "world_size", "", std::to_string(place.size), deadline);
  if (!size) return tl::unexpected(size.error());
  if (*size != std::to_string(place.size)) {
    return fail(Errc::invalid_argument, concat("there are ", place.size, " ranks, but another rank says ", *size,
                                               ": WORLD_SIZE must be the same everywhere"));
  }
  const auto how_many = meeting.client->add(concat(prefix, "is_rank/", place.rank), 1, deadline);
  if (!how_many) return tl::unexpected(how_many.error());
  if (*how_many != 1) {
    return fail(Errc::invalid_argument, concat("another process is rank ", place.rank, " too: is RANK set by hand, or ",
                                               "does another job use the same MASTER_PORT?"));
  }
  return {};
}

}  // namespace

Result<Place> place_from(const Environment& variables) {
  const Reader read(variables);
  Place place;
  if (read.has("RANK") || read.has("WORLD_SIZE")) {
    if (auto taken = take_ranks(place, read); !taken) return tl::unexpected(taken.error());
    place.store_is_there = read.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  } else {
    const auto started = cluster::find_started_rank(variables);
    if (!started) return tl::unexpected(started.error());
    place.alone = !started->has_value();
    if (place.alone) return place;
    if (auto taken = take_started(place, **started, read); !taken) return tl::unexpected(taken.error());
  }
  if (read.has("MASTER_ADDR")) place.master_address = read.text("MASTER_ADDR");
  if (auto taken = read.take("MASTER_PORT", 1, 65535, place.master_port); !taken) {
    return tl::unexpected(taken.error());
  }
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
  if (auto in = check_in(place, meeting, deadline); !in) return tl::unexpected(in.error());
  meeting.group.store = meeting.client.get();
  meeting.group.address = own_address(meeting.client->server());
  return meeting;
}

}  // namespace ddrun::bench
