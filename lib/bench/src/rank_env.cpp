#include "ddrun/bench/rank_env.hpp"

#include <sys/socket.h>

#include <climits>
#include <vector>

#include "ddrun/base/address.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/cluster/detect.hpp"
#include "ddrun/store/resolve.hpp"

namespace ddrun::bench {

namespace {

constexpr const char* how_to_start = "start it with a launcher, for example: ddrun --nproc-per-node=4 ddrun-allreduce";

/// The local address used for connections to `server` ("10.0.0.1:29500", "[::1]:29500"); peers that reach the store can
/// reach this address too. Sends nothing.
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

Result<std::unique_ptr<store::TcpServer>> serve(const RankEnv& env) {
  store::TcpServerOptions options;
  options.port = env.master_port;
  options.addresses = TRY(store::resolve(env.master_address));
  return store::TcpServer::start(options);
}

class EnvReader {
 public:
  explicit EnvReader(const Environment& variables) : variables_(variables) {}

  [[nodiscard]] std::string text(std::string_view name) const { return std::string(variables_.get(name).value_or("")); }
  [[nodiscard]] bool has(std::string_view name) const { return variables_.get(name).has_value(); }

  /// An error that lists the names that are not set.
  [[nodiscard]] Result<void> require(const std::vector<std::string_view>& names, std::string_view advice) const {
    std::vector<std::string> missing;
    for (const std::string_view name : names) {
      if (!has(name)) missing.emplace_back(name);
    }
    if (missing.empty()) return {};
    return fail(Errc::invalid_argument,
                concat(join(missing, ", "), missing.size() == 1 ? " is" : " are", " not set: ", advice));
  }

  template <class Number>
  [[nodiscard]] Result<void> read_int(std::string_view name, int low, int high, Number& number) const {
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

Result<void> read_rank_variables(RankEnv& env, const EnvReader& read) {
  std::vector<std::string_view> needed{"RANK", "WORLD_SIZE"};
  if (read.text("WORLD_SIZE") != "1") needed.insert(needed.end(), {"MASTER_ADDR", "MASTER_PORT"});
  constexpr int max_ranks = 1'000'000;
  return read.require(needed, how_to_start)
      .and_then([&] { return read.read_int("WORLD_SIZE", 1, max_ranks, env.size); })
      .and_then([&] { return read.read_int("RANK", 0, env.size - 1, env.rank); })
      .and_then([&] {
        env.local_size = env.size;
        return read.read_int("LOCAL_WORLD_SIZE", 1, env.size, env.local_size);
      })
      .and_then([&] { return read.read_int("LOCAL_RANK", 0, env.local_size - 1, env.local_rank); })
      .and_then([&] { return read.read_int("TORCHELASTIC_RESTART_COUNT", 0, INT_MAX, env.restart_count); });
}

/// mpirun and srun set the ranks but not the store's address.
Result<void> apply_started_rank(RankEnv& env, const cluster::StartedRank& started, const EnvReader& read) {
  env.rank = started.rank;
  env.size = started.size;
  env.local_rank = started.local_rank;
  env.local_size = started.local_size;
  if (started.size == 1) return {};
  return read.require({"MASTER_ADDR", "MASTER_PORT"},
                      concat(started.launcher, " does not say where ranks can meet; start it with ", started.command,
                             " ddrun-allreduce, with an address of rank 0's machine and a port that is free there"));
}

/// Detects a wrong WORLD_SIZE or RANK on each rank, as its peers would only time out.
Result<void> check_unique_rank(const RankEnv& env, const Rendezvous& rdzv, Deadline deadline) {
  const std::string& prefix = rdzv.group.prefix;
  const auto size = TRY(rdzv.client->compare_set(prefix + "world_size", "", std::to_string(env.size), deadline));
  if (size != std::to_string(env.size)) {
    return fail(Errc::invalid_argument, concat("there are ", env.size, " ranks, but another rank says ", size,
                                               ": WORLD_SIZE must be the same everywhere"));
  }
  if (TRY(rdzv.client->add(concat(prefix, "is_rank/", env.rank), 1, deadline)) != 1) {
    return fail(Errc::invalid_argument, concat("another process is rank ", env.rank, " too: is RANK set by hand, or ",
                                               "does another job use the same MASTER_PORT?"));
  }
  return {};
}

}  // namespace

Result<RankEnv> rank_env_from(const Environment& variables) {
  const EnvReader read(variables);
  RankEnv env;
  if (read.has("RANK") || read.has("WORLD_SIZE")) {
    TRY(read_rank_variables(env, read));
    env.launcher_serves_store = read.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  } else {
    const auto started = TRY(cluster::find_started_rank(variables));
    env.is_singleton = !started.has_value();
    if (env.is_singleton) return env;
    TRY(apply_started_rank(env, *started, read));
  }
  if (read.has("MASTER_ADDR")) env.master_address = read.text("MASTER_ADDR");
  TRY(read.read_int("MASTER_PORT", 1, 65535, env.master_port));
  return env;
}

Result<Rendezvous> rendezvous(const RankEnv& env, Deadline deadline) {
  Rendezvous rdzv;
  rdzv.group.rank = env.rank;
  rdzv.group.size = env.size;
  // Under torchrun the store outlives an attempt, so each attempt has its own prefix.
  rdzv.group.prefix = concat("ddrun-allreduce/", env.restart_count, '/');
  if (env.size == 1) return rdzv;
  const std::string store_name = concat("the store at ", env.master_address, " port ", env.master_port);
  if (!env.launcher_serves_store && env.rank == 0) {
    auto server = serve(env);
    if (!server) return fail(server.error().code, concat("cannot serve ", store_name, ": ", server.error().message));
    rdzv.server = std::move(*server);
  }
  auto client = store::connect_by_name(env.master_address, env.master_port, deadline);
  if (!client) return fail(client.error().code, concat("cannot reach ", store_name, ": ", client.error().message));
  rdzv.client = std::move(*client);
  TRY(check_unique_rank(env, rdzv, deadline));
  rdzv.group.store = rdzv.client.get();
  rdzv.group.address = own_address(rdzv.client->server());
  return rdzv;
}

}  // namespace ddrun::bench
