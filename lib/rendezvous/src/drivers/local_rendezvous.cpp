#include "ddrun/rendezvous/local_rendezvous.hpp"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "back_ends.hpp"
#include "coordinator.hpp"
#include "ddrun/base/address.hpp"
#include "ddrun/base/alarm.hpp"
#include "ddrun/base/io_context.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/rendezvous/secret.hpp"
#include "ddrun/store/tcp_server.hpp"
#include "settings.hpp"
#include "warn_on.hpp"

namespace ddrun::rendezvous {

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

namespace {

/// The agent's link number.
constexpr LinkId own_link = 1;

/// Rendezvous of a job on one machine: a coordinator with one member, called directly. Its messages are handled before
/// the causing call returns. The worker store listens on loopback unless the user named another address of this
/// machine.
class LocalRendezvous final : public Rendezvous {
 public:
  LocalRendezvous(boost::asio::any_io_executor executor, RendezvousOptions options, RendezvousListener listener)
      : executor_(std::move(executor)),
        options_(std::move(options)),
        listener_(std::move(listener)),
        first_client_(executor_),
        coordinator_(coordinator_options(options_)),
        alarm_(executor_) {}

  Result<void> open() override;
  [[nodiscard]] bool runs_coordinator() const override { return true; }
  [[nodiscard]] const std::string& run_id() const override { return endpoint_.run_id; }
  void join() override;
  void failed(const Failed& failure) override { send(failure); }
  void succeeded() override { send(Succeeded{round_}); }
  void stopped(const Stopped& stopped) override { send(stopped); }
  void leave(const Leave& why) override { send(why); }
  void pass_signal(int signal) override { listener_.signal(signal); }
  void abort(const Abort& why) override {
    if (abort_reason_.empty()) abort_reason_ = why.what;
    send(why);
  }
  void abandon(const std::string& why) override { abort({AbortKind::cannot_go_on, exit_codes::launcher_failed, why}); }
  void set_paused(bool paused) override;
  void async_close(std::function<void()> done) override {
    stop_awaiting();
    alarm_.cancel();
    done();
  }

 private:
  [[nodiscard]] static CoordinatorOptions coordinator_options(const RendezvousOptions& options);

  /// The coordinator's clock stops while paused.
  [[nodiscard]] Clock::time_point now() const { return paused_since_.value_or(Clock::now()) - paused_time_; }
  void send(const FromAgent& message) {
    if (is_over_) return;
    coordinator_.receive(own_link, message, now());
    process_outputs();
  }
  /// Handles the coordinator's output and arms its timer.
  void process_outputs();
  template <class Other>  // messages for jobs with several members
  void on(const Other&) {}
  void on(const Refused& refused);
  void on(const Open& open);
  void on(const Start& start);
  void on(const Stop& stop);
  void on(VerdictMessage verdict);
  void on(const Notice& notice) { listener_.notice(notice.text); }
  void on(const EventLine& event) { listener_.event(event.json); }
  /// Until a worker connects, the store has no thread: most programs without PyTorch need none.
  Result<void> await_first_client();
  void stop_awaiting() {
    boost::system::error_code ignored;
    first_client_.close(ignored);
  }
  /// Starts with an empty key space and without old connections.
  Result<void> renew_store();

  boost::asio::any_io_executor executor_;
  RendezvousOptions options_;
  RendezvousListener listener_;
  LocalEndpoint endpoint_;
  std::unique_ptr<store::TcpServer> store_;
  boost::asio::posix::stream_descriptor first_client_;
  std::uint16_t port_ = 0;
  bool store_is_new_ = true;
  Coordinator coordinator_;
  Alarm alarm_;
  bool processing_ = false;
  Round round_ = 0;  ///< last started
  std::string abort_reason_;
  bool is_over_ = false;
  std::optional<Clock::time_point> paused_since_;
  Clock::duration paused_time_{};
};

CoordinatorOptions LocalRendezvous::coordinator_options(const RendezvousOptions& options) {
  CoordinatorOptions options_for_job;
  options_for_job.host = options.full_host;
  options_for_job.single_member = true;
  options_for_job.with_events = options.spec->events_file.has_value();
  return options_for_job;
}

Result<void> LocalRendezvous::open() {
  const RendezvousSpec& spec = options_.spec->rendezvous;
  auto endpoint = choose_local_endpoint(spec);
  if (!endpoint) return tl::unexpected(endpoint.error());
  endpoint_ = std::move(*endpoint);
  store::TcpServerOptions options;
  options.addresses = endpoint_.listen_on;
  options.port = endpoint_.port;
  options.max_memory = spec.store_max_memory;
  options.on_refusal = warn_on(executor_);
  auto server = store::TcpServer::listen(options);
  if (!server) {
    Error error = server.error();
    if (endpoint_.port != 0) error.message += spec.endpoint.empty() ? " (--master-port)" : " (--rdzv-endpoint)";
    return tl::unexpected(error);
  }
  port_ = (*server)->port();
  endpoint_.advertised = reachable_address(endpoint_.advertised, (*server)->addresses());
  if (!options_.with_store) return {};
  store_ = std::move(*server);
  return await_first_client();
}

Result<void> LocalRendezvous::await_first_client() {
  auto watched = duplicate(store_->descriptor());
  if (!watched) return tl::unexpected(watched.error());
  if (const int err = assign_descriptor(first_client_, std::move(*watched)); err != 0) {
    return fail_errno(Errc::unavailable, "cannot watch the store", err);
  }
  first_client_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                           [this](const boost::system::error_code& cancelled) {
                             if (cancelled) return;
                             stop_awaiting();
                             if (auto served = store_->serve(); !served) abandon(served.error().message);
                           });
  return {};
}

void LocalRendezvous::join() {
  Join join;
  join.version = options_.version;
  join.job_id = endpoint_.run_id;
  join.agent_id = random_id();
  join.host = options_.full_host;
  join.local_world_size = static_cast<std::uint32_t>(options_.local_world_size);
  join.role = options_.spec->role;
  join.address = endpoint_.advertised;
  join.runs_coordinator = true;
  join.settings = join_settings(*options_.spec);
  for (auto& [key, value] : join.settings) {
    if (key == "min_nodes" || key == "max_nodes") value = "1";
    if (key == "node_max_failures") value = "0";  // no other machine to continue on
  }
  const LinkAddresses addresses{*IpAddress::parse("127.0.0.1"), *IpAddress::parse("127.0.0.1")};
  coordinator_.join(own_link, join, addresses, now());
  process_outputs();
}

void LocalRendezvous::process_outputs() {
  if (std::exchange(processing_, true)) return;  // nested output is handled by the outer call
  for (auto outputs = coordinator_.take_outputs(); !outputs.empty(); outputs = coordinator_.take_outputs()) {
    for (auto& one : outputs) {
      if (one.message && !is_over_) std::visit([this](auto& what) { on(what); }, *one.message);
    }
  }
  processing_ = false;
  const auto wanted = coordinator_.next_deadline();
  if (is_over_ || !wanted) return alarm_.cancel();
  const Clock::duration late = Clock::now() - now();
  alarm_.set(*wanted + late, [this] {
    coordinator_.tick(now());
    process_outputs();
  });
}

void LocalRendezvous::on(const Refused& refused) {
  VerdictMessage verdict;
  verdict.kind = VerdictKind::launcher_failed;
  verdict.exit_code = exit_codes::launcher_failed;
  abort_reason_ = refused.why;
  on(verdict);
}

Result<void> LocalRendezvous::renew_store() {
  if (std::exchange(store_is_new_, false) || !store_) return {};
  return store_->new_round();
}

void LocalRendezvous::on(const Open& open) {
  if (auto renewed = renew_store(); !renewed) {
    return abort({AbortKind::cannot_go_on, exit_codes::launcher_failed, renewed.error().message});
  }
  send(Opened{open.round, port_});
}

void LocalRendezvous::on(const Start& start) {
  round_ = start.round;
  RankAssignment ranks = start.ranks;
  ranks.run_id = endpoint_.run_id;
  ranks.round = start.round;
  listener_.round_begins(start.round, ranks);
}

void LocalRendezvous::on(const Stop& stop) {
  if (stop.round == round_) listener_.stop(stop);
  else send(Stopped{stop.round, {}, {}});  // the store could not be opened: nothing runs
}

void LocalRendezvous::on(VerdictMessage verdict) {
  is_over_ = true;
  // With one machine the host need not be named.
  if (verdict.kind == VerdictKind::launcher_failed || verdict.kind == VerdictKind::timed_out)
    verdict.why = abort_reason_;
  listener_.verdict(verdict);
}

void LocalRendezvous::set_paused(bool paused) {
  if (paused == paused_since_.has_value()) return;
  if (paused) paused_since_ = Clock::now();
  else paused_time_ += Clock::now() - *std::exchange(paused_since_, std::nullopt);
  alarm_.set_paused(paused);
}

}  // namespace

std::shared_ptr<Rendezvous> make_local_rendezvous(boost::asio::any_io_executor executor, RendezvousOptions options,
                                                  RendezvousListener listener) {
  return std::make_shared<LocalRendezvous>(std::move(executor), std::move(options), std::move(listener));
}

}  // namespace ddrun::rendezvous
