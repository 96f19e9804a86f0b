#include <list>
#include <optional>
#include <utility>
#include <variant>

#include "coordinator.hpp"
#include "ddrun/base/address.hpp"
#include "ddrun/base/alarm.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/io_context.hpp"
#include "ddrun/base/wrong_step.hpp"
#include "ddrun/rendezvous/find_coordinator.hpp"
#include "ddrun/store/tcp_server.hpp"
#include "member_driver.hpp"
#include "settings.hpp"

namespace ddrun::rendezvous {

namespace {

/// The agent's link number.
constexpr LinkId own_link = 1;

/// The driver of a job on one machine: its member and its coordinator are joined by a queue. The worker store listens
/// on loopback unless the user named another address of this machine.
class LocalRendezvous final : public MemberDriver {
 public:
  LocalRendezvous(boost::asio::any_io_executor executor, RendezvousOptions options, RendezvousListener listener)
      : MemberDriver(std::move(executor), std::move(options), std::move(listener)),
        coordinator_(coordinator_options(options_)),
        alarm_(executor_) {}

  Result<void> open() override;
  [[nodiscard]] std::vector<int> store_ports() const override {
    std::vector<int> ports;
    for (const WorldStore& store : stores_) ports.push_back(store.port);
    return ports;
  }
  [[nodiscard]] std::vector<store::TcpServerWait> store_waits() const override {
    std::vector<store::TcpServerWait> waits;
    for (const WorldStore& store : stores_) {
      if (store.server) std::ranges::move(store.server->waits(), std::back_inserter(waits));
    }
    return waits;
  }
  [[nodiscard]] bool are_stores_unused() const override {
    return std::ranges::all_of(stores_, [](const auto& one) { return one.server && one.first_client.is_open(); });
  }
  /// The coordinator ends the job in order, as it has no other process.
  void abandon(const std::string& why) override {
    send(Leave{LeaveKind::cannot_go_on, exit_codes::launcher_failed, why});
  }
  void set_paused(bool paused) override;

 private:
  [[nodiscard]] static CoordinatorOptions coordinator_options(const RendezvousOptions& options);

  /// Stops while paused.
  [[nodiscard]] Clock::time_point now() const override { return paused_since_.value_or(Clock::now()) - paused_time_; }
  using MemberDriver::carry_out;
  void carry_out(const MemberAction& action) override {
    std::visit([this](const auto& what) { carry_out(what); }, action);
  }
  template <class Other>  // actions for several machines
  void carry_out(const Other&) {}
  void carry_out(const member_action::StartServer&) { step(member_event::ServerStarted{}); }
  void carry_out(const member_action::Dial& dial);
  void carry_out(const FromAgent& message) {
    coordinator_.receive(own_link, message, now());
    take_outputs();
  }
  void carry_out(const member_action::OpenStore& open);
  void carry_out(const member_action::CloseLink&) {
    stop_awaiting();
    step(member_event::LinkClosed{});
    step(member_event::ServerDone{1});
  }
  void carry_out(const member_action::DropAll&) { alarm_.cancel(); }
  /// Passes the coordinator's messages on, and arms its timer.
  void take_outputs();

  struct WorldStore {
    std::unique_ptr<store::TcpServer> server;  ///< null: a worker listens instead
    boost::asio::posix::stream_descriptor first_client;
    std::uint16_t port = 0;
  };
  /// Listens at the endpoint's port, or for a further world at any.
  Result<void> open_store();
  /// Until a worker connects, the store has no thread: most programs without PyTorch need none.
  Result<void> await_first_client(WorldStore& store);
  void stop_awaiting() {
    boost::system::error_code ignored;
    for (WorldStore& store : stores_) store.first_client.close(ignored);
  }
  /// Starts with an empty key space and without old connections.
  Result<void> renew_stores();

  LocalEndpoint endpoint_;
  std::list<WorldStore> stores_;  ///< by world
  std::string address_;           ///< of the first
  bool stores_are_new_ = true;
  Coordinator coordinator_;
  Alarm alarm_;
  std::optional<Clock::time_point> paused_since_;
  Clock::duration paused_time_{};
};

CoordinatorOptions LocalRendezvous::coordinator_options(const RendezvousOptions& options) {
  CoordinatorOptions options_for_job;
  options_for_job.host = options.full_host;
  options_for_job.single_member = true;
  options_for_job.with_events = options.spec->events_file.has_value();
  JobSettings& settings = options_for_job.settings.emplace(job_settings(*options.spec));
  settings.min_nodes = settings.max_nodes = 1;
  settings.node_max_failures = 0;  // no other machine to continue on
  options_for_job.on_step = wrong_step_hook("coordinator");
  return options_for_job;
}

Result<void> LocalRendezvous::open() {
  endpoint_ = TRY(choose_local_endpoint(options_.spec->rendezvous));
  run_id_ = endpoint_.run_id;
  for (std::size_t world = 0; world < options_.with_store.size(); ++world) TRY(open_store());
  // All ports are taken by now, so that they differ.
  auto with_store = options_.with_store.begin();
  for (WorldStore& store : stores_) {
    if (!*with_store++) store.server.reset();
    else TRY(await_first_client(store));
  }
  MemberOptions member;
  member.may_run_server = true;
  member.join.address = address_;
  start_machine(std::move(member));
  step(member_event::Prepare{});
  return {};
}

Result<void> LocalRendezvous::open_store() {
  const RendezvousSpec& spec = options_.spec->rendezvous;
  const bool is_first = stores_.empty();
  store::TcpServerOptions options;
  options.addresses = endpoint_.listen_on;
  options.port = is_first ? endpoint_.port : std::uint16_t{0};
  options.max_memory = spec.store_max_memory;
  options.on_refusal = warn_on(executor_);
  auto server = store::TcpServer::listen(options);
  if (!server) {
    Error error = server.error();
    if (options.port != 0) error.message += spec.endpoint.empty() ? " (--master-port)" : " (--rdzv-endpoint)";
    return tl::unexpected(error);
  }
  if (is_first) address_ = reachable_address(endpoint_.advertised, (*server)->addresses());
  const std::uint16_t port = (*server)->port();
  stores_.push_back({std::move(*server), boost::asio::posix::stream_descriptor(executor_), port});
  return {};
}

Result<void> LocalRendezvous::await_first_client(WorldStore& store) {
  auto watched = TRY(duplicate(store.server->descriptor()));
  if (const int err = assign_descriptor(store.first_client, std::move(watched)); err != 0) {
    return fail_errno(Errc::unavailable, "cannot watch the store", err);
  }
  store.first_client.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                                [this, &store](const boost::system::error_code& cancelled) {
                                  if (cancelled) return;
                                  boost::system::error_code ignored;
                                  store.first_client.close(ignored);
                                  if (auto served = store.server->serve(); !served) abandon(served.error().message);
                                });
  return {};
}

void LocalRendezvous::carry_out(const member_action::Dial& dial) {
  const LinkAddresses addresses{*IpAddress::parse("127.0.0.1"), *IpAddress::parse("127.0.0.1")};
  coordinator_.join(own_link, dial.join, addresses, now());
  take_outputs();
}

void LocalRendezvous::take_outputs() {
  for (auto& output : coordinator_.take_outputs()) {
    if (output.message) step(std::move(*output.message));
  }
  const auto wanted = coordinator_.next_deadline();
  if (!wanted) return alarm_.cancel();
  alarm_.set(*wanted + (Clock::now() - now()), [this] {
    coordinator_.tick(now());
    take_outputs();
  });
}

Result<void> LocalRendezvous::renew_stores() {
  if (std::exchange(stores_are_new_, false)) return {};
  for (WorldStore& store : stores_) {
    if (store.server) TRY(store.server->new_round());
  }
  return {};
}

void LocalRendezvous::carry_out(const member_action::OpenStore& open) {
  auto renewed = renew_stores();
  if (renewed) step(member_event::StoreOpened{open.order.round, stores_.front().port});
  else step(member_event::StoreOpened{open.order.round, tl::unexpected(renewed.error())});
}

void LocalRendezvous::set_paused(bool paused) {
  if (paused == paused_since_.has_value()) return;
  if (paused) paused_since_ = Clock::now();
  else paused_time_ += Clock::now() - *std::exchange(paused_since_, std::nullopt);
  alarm_.set_paused(paused);
  timer_.set_paused(paused);
}

}  // namespace

std::shared_ptr<Rendezvous> make_local_rendezvous(boost::asio::any_io_executor executor, RendezvousOptions options,
                                                  RendezvousListener listener) {
  return std::make_shared<LocalRendezvous>(std::move(executor), std::move(options), std::move(listener));
}

}  // namespace ddrun::rendezvous
