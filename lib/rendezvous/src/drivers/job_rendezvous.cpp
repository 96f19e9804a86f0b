#include <algorithm>
#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agent_link.hpp"
#include "codec.hpp"
#include "ddrun/base/address.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/base/io_context.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/proc.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/base/shutdown_timeouts.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/wrong_step.hpp"
#include "ddrun/lease/etcd.hpp"
#include "ddrun/lease/lease.hpp"
#include "ddrun/rendezvous/coordinator_server.hpp"
#include "ddrun/rendezvous/find_coordinator.hpp"
#include "ddrun/rendezvous/hmac.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "ddrun/store/tcp_server.hpp"
#include "heartbeat.hpp"
#include "member_driver.hpp"
#include "node_ranks.hpp"

namespace ddrun::rendezvous {

namespace asio = boost::asio;

namespace {

/// Beyond the heartbeat limit, after which a lost member's node rank is free: for the loss to be noticed, and another
/// JOIN.
constexpr Milliseconds conflict_margin{2'000};
/// Of this machine's coordinator addresses in the lease.
constexpr std::size_t max_announced_bytes = 1024;

/// `on_start` as in RendezvousOptions::on_lease_program. Errors: `not_found` without etcdctl.
Result<lease::ProgramOptions> lease_program(const RendezvousSpec& spec, std::function<void(pid_t)> on_start) {
  lease::ProgramOptions program;
  if (spec.is_etcd()) {
    TRY(lease::check_etcdctl());
    program.name = "etcdctl";
    const auto conf = [&](const char* key) { return spec.conf_value(key).value_or(""); };
    program.argv =
        lease::etcd_command({spec.endpoint, conf("protocol") == "https", conf("cacert"), conf("cert"), conf("key")});
    // Not in argv, which is visible to all users.
    if (const std::string user = conf("user"); !user.empty()) program.environment = concat("DDRUN_ETCD_USER=", user);
  } else {
    for (auto& word : split(spec.lease, ' ')) {
      if (!word.empty()) program.argv.push_back(std::move(word));
    }
  }
  program.on_start = std::move(on_start);
  return program;
}

/// The worker store of a job on several machines, on the node of rank 0: empty for each round, accessible to the
/// machines of the round only, and listening on the advertised address only.
class RoundStore {
 public:
  /// Rejected clients are reported as warnings on `executor`, whose context must outlive this object.
  /// `machine_addresses`: of this machine. Without `with_store` only a free port is chosen, for a worker to listen on.
  RoundStore(boost::asio::any_io_executor executor, std::vector<IpAddress> machine_addresses, std::uint64_t max_memory,
             bool with_store)
      : executor_(std::move(executor)),
        machine_addresses_(std::move(machine_addresses)),
        max_memory_(max_memory),
        with_store_(with_store) {}

  /// Opens it for a round, at that port, 0: any; returns the port. Blocks for less than a millisecond. Errors:
  /// `unavailable` if it cannot listen; `invalid_argument` or `protocol` for an order without usable addresses.
  Result<std::uint16_t> open(const Open& order, std::uint16_t port);

  [[nodiscard]] std::vector<store::TcpServerWait> waits() const {
    return server_ ? server_->waits() : std::vector<store::TcpServerWait>();
  }

  /// Another node has the store.
  void close() { server_.reset(); }

 private:
  boost::asio::any_io_executor executor_;
  std::vector<IpAddress> machine_addresses_;
  std::uint64_t max_memory_;
  bool with_store_;
  std::vector<std::string> listens_on_;
  std::unique_ptr<store::TcpServer> server_;
};

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
    TRY(server_->new_round(order.addresses));
    return server_->port();
  }
  server_.reset();
  store::TcpServerOptions options;
  options.addresses = addresses;
  options.port = port;
  options.max_memory = max_memory_;
  options.allowed_peers = order.addresses;
  options.on_refusal = warn_on(executor_);
  auto started = TRY(store::TcpServer::start(options));
  port = started->port();
  if (with_store_) {
    server_ = std::move(started);
    listens_on_ = std::move(addresses);
  }
  return port;
}

/// The driver of a member of a job on several machines: its link to the coordinator, the coordinators that have run in
/// this process, the lease and the worker store.
class JobRendezvous final : public MemberDriver {
 public:
  JobRendezvous(asio::any_io_executor executor, RendezvousOptions options, RendezvousListener listener)
      : MemberDriver(std::move(executor), std::move(options), std::move(listener)) {}
  Result<void> open() override;
  [[nodiscard]] std::vector<store::TcpServerWait> store_waits() const override {
    return store_ ? store_->waits() : std::vector<store::TcpServerWait>();
  }

 private:
  Result<void> open_lease();
  [[nodiscard]] MemberOptions member_options() const;
  [[nodiscard]] Result<std::unique_ptr<CoordinatorServer>> start_server(const member_action::StartServer& order);
  [[nodiscard]] CoordinatorServer& server() const { return *servers_.rbegin()->second; }
  [[nodiscard]] std::string announced_address() const;
  [[nodiscard]] std::uint16_t wanted_store_port() const;

  using MemberDriver::carry_out;
  void carry_out(const MemberAction& action) override {
    std::visit([this](const auto& what) { carry_out(what); }, action);
  }
  void carry_out(const FromAgent& message) {
    if (link_) link_->send(message);
  }
  void carry_out(const member_action::Dial& dial);
  void carry_out(const member_action::Hang&) { link_.reset(); }
  void carry_out(const member_action::BoundWorkers&) {
    if (link_) link_->order_stop();
  }
  void carry_out(const member_action::CloseLink&);
  void carry_out(const member_action::StartServer& order);
  void carry_out(const member_action::Suspend&) { server().suspend(); }
  void carry_out(const member_action::Lead& lead) { server().lead(lead.term); }
  void carry_out(const member_action::StepDown& order) { server().step_down(order.why); }
  void carry_out(const member_action::NoteRecorded&) { server().recorded(); }
  void carry_out(const member_action::StopServer& stop) { servers_.erase(stop.server); }
  void carry_out(const member_action::StartLease&) {
    if (auto started = lease_->start(); !started) step(LinkLoss{started.error()});
  }
  void carry_out(const member_action::Campaign& order) { lease_->campaign(order.serves ? announced_address() : ""); }
  void carry_out(const member_action::Resign& resign);
  void carry_out(const member_action::Depose& depose) { lease_->depose(depose.term); }
  void carry_out(const member_action::Record& record) { record_verdict(*lease_, record.verdict, later()); }
  void carry_out(const member_action::OpenStore& open);
  void carry_out(const member_action::CloseStore&) { store_->close(); }
  void carry_out(const member_action::DropAll&) {
    link_.reset();
    servers_.clear();
    lease_.reset();
    store_.reset();
  }

  using Later = std::function<void(MemberEvent)>;
  /// Posts an event, from any thread; without effect after this object's destruction.
  [[nodiscard]] Later later() {
    return [weak = weak_from_this(), executor = executor_](MemberEvent event) {
      asio::post(executor, [weak, event = std::move(event)] {
        if (const auto self = weak.lock()) static_cast<JobRendezvous&>(*self).step(event);
      });
    };
  }
  static void record_verdict(lease::Lease& lease, const VerdictMessage& verdict, Later later) {
    lease.record_verdict(serialize_verdict(verdict), [verdict, later = std::move(later)](const Result<void>& result) {
      later(member_event::Recorded{verdict, result.has_value()});
    });
  }

  CoordinatorLocation location_;
  LocalMachine machine_;
  std::optional<HmacKey> key_;           ///< from the job's secret; none: --insecure
  std::unique_ptr<lease::Lease> lease_;  ///< outlives the servers, which use it
  /// By number. Those before the last one have stepped down, and still tell their agents.
  std::map<int, std::unique_ptr<CoordinatorServer>> servers_;
  std::unique_ptr<AgentLink> link_;
  std::unique_ptr<RoundStore> store_;
  std::optional<Error> server_error_;  ///< of the last start
};

// ---- opening

Result<void> JobRendezvous::open() {
  const RendezvousSpec& rendezvous = options_.spec->rendezvous;
  run_id_ = rendezvous.id;
  // Only the derived key is kept.
  if (options_.secret) key_.emplace(options_.secret->bytes());
  options_.secret.reset();
  machine_ = this_machine();
  if (rendezvous.has_lease()) {
    TRY(open_lease());
  } else {
    location_ = TRY(find_coordinator(rendezvous, machine_));
  }
  if (!location_.warning.empty()) say(Level::warning, location_.warning);
  store_ = std::make_unique<RoundStore>(executor_, machine_.addresses, rendezvous.store_max_memory,
                                        options_.with_store.front());
  start_machine(member_options());
  step(member_event::Prepare{});
  // Several agents on one machine: the first one runs it.
  const bool may_be_taken =
      !location_.is_explicit && server_error_ && server_error_->cause == std::errc::address_in_use;
  if (server_error_ && !may_be_taken) return tl::unexpected(*server_error_);
  return {};
}

Result<void> JobRendezvous::open_lease() {
  const RendezvousSpec& rendezvous = options_.spec->rendezvous;
  auto program = TRY(lease_program(rendezvous, options_.on_lease_program));
  location_.is_explicit = true;
  location_.ports = {static_cast<std::uint16_t>(rendezvous.coordinator_port)};
  const int candidates = std::max(rendezvous.max_nodes, rendezvous.agents_expected);
  lease_ =
      TRY(lease::Lease::make(executor_, {rendezvous.id, rendezvous.lease_ttl, candidates, wrong_step_hook("candidate")},
                             std::move(program), [this](const lease::Tell& what) { step(what); }));
  return {};
}

MemberOptions JobRendezvous::member_options() const {
  const RendezvousSpec& rendezvous = options_.spec->rendezvous;
  MemberOptions options;
  options.is_explicit = location_.is_explicit;
  options.may_run_server = location_.is_local;
  options.join.node_rank = rendezvous.node_rank.value_or(-1);
  options.join.rank_is_wish = rendezvous.node_rank_is_wish;
  options.join.address = rendezvous.local_addr.value_or("");
  options.join.own_addresses = advertised_addresses(machine_.addresses);
  // Machines cloned from one image may share a name.
  options.join.machine = trim(read_small_file("/proc/sys/kernel/random/boot_id").value_or(""));
  return options;
}

// ---- the link

void JobRendezvous::carry_out(const member_action::Dial& dial) {
  const RendezvousSpec& rendezvous = options_.spec->rendezvous;
  AgentLinkOptions options;
  if (dial.is_here) options.coordinators = {{"127.0.0.1", server().port()}, {"::1", server().port()}};
  else options.coordinators = dial.address.empty() ? location_.candidates : announced_endpoints(dial.address);
  if (!dial.address.empty()) nearest_first(options.coordinators, machine_.addresses);
  options.secret = key_;
  options.secret_file = options_.secret_file;
  options.is_local = dial.is_here;
  options.was_reachable = dial.was_reachable;
  options.join = dial.join;
  options.on_step = wrong_step_hook("dialer");
  options.connect_by = dial.by;
  options.conflict_timeout = rendezvous.heartbeat_interval * (rendezvous.heartbeat_misses + 1) + conflict_margin;
  if (const auto& local = rendezvous.local_addr; local && IpAddress::parse(*local) && !dial.is_here) {
    options.local_address = *local;
  }
  AgentLinkCallbacks callbacks;
  callbacks.on_message = [this](const FromCoordinator& message) { step(message); };
  callbacks.on_lost = [this](const LinkLoss& loss) { step(loss); };
  callbacks.on_retry = [this](const std::string& why) { step(member_event::Retry{why}); };
  callbacks.on_not_listening = [this] { step(member_event::NotListening{}); };
  callbacks.on_resolved = [this](const std::vector<std::string>& addresses) {
    LocalMachine machine = machine_;
    machine.resolve = [&](const std::string&) { return addresses; };
    const auto location = find_coordinator(options_.spec->rendezvous, machine);
    step(member_event::Located{location.map([](const CoordinatorLocation& found) { return found.is_local; })});
  };
  auto context = make_io_context();
  if (!context) return step(LinkLoss{context.error()});
  const auto lost_sight_grace = shutdown::grace_out_of_sight(options_.spec->stop.grace, rendezvous.fence.has_value());
  serve_blocked_owner(options, **context, executor_, options_.kill_workers, options_.spec->stop.grace,
                      lost_sight_grace);
  if (options_.on_workers_until) {
    options.on_workers = [tell = options_.on_workers_until, leads = dial.is_here && lease_, lost_sight_grace](
                             bool run, std::optional<Clock::time_point> loses_sight_at, Milliseconds heartbeat) {
      using Kind = WorkersUntil::Kind;
      if (loses_sight_at) tell({Kind::time, *loses_sight_at + lost_sight_grace + shutdown::owner_margin, heartbeat});
      else tell({run && leads ? Kind::lead : Kind::unbounded, {}, heartbeat});
    };
  }
  link_ = std::make_unique<AgentLink>(executor_, std::move(*context), std::move(options), std::move(callbacks));
  if (auto started = link_->start(); !started) step(LinkLoss{started.error()});
}

void JobRendezvous::carry_out(const member_action::CloseLink&) {
  if (!link_) return step(member_event::LinkClosed{});
  link_->close([this] { step(member_event::LinkClosed{}); });
}

// ---- the coordinator here, and the lease

void JobRendezvous::carry_out(const member_action::StartServer& order) {
  server_error_.reset();
  auto server = start_server(order);
  if (!server) {
    server_error_ = server.error();
    return step(member_event::ServerFailed{server.error()});
  }
  if (options_.on_listening) options_.on_listening((*server)->port());
  servers_[order.server] = std::move(*server);
  step(member_event::ServerStarted{});
}

Result<std::unique_ptr<CoordinatorServer>> JobRendezvous::start_server(const member_action::StartServer& order) {
  const RendezvousSpec& rendezvous = options_.spec->rendezvous;
  CoordinatorServerOptions options;
  if (location_.loopback_only) options.addresses = {"127.0.0.1", "::1"};
  options.ports = location_.ports;
  options.secret = key_;
  options.secret_file = options_.secret_file;
  options.coordinator.host = options_.full_host;
  options.coordinator.job_id = rendezvous.id;
  options.coordinator.own_addresses = machine_.addresses;
  options.coordinator.own_join = order.own_join;
  options.coordinator.first_round_nodes = rendezvous.first_round_nodes;
  options.coordinator.heartbeat_interval = rendezvous.heartbeat_interval;
  options.coordinator.heartbeat_misses = rendezvous.heartbeat_misses;
  options.coordinator.on_step = wrong_step_hook("coordinator");
  options.on_done = [later = later(), server = order.server] { later(member_event::ServerDone{server}); };
  options.on_notice = warn_on(executor_);
  if (lease_) {
    options.coordinator.term = order.term;
    options.coordinator.has_lease = true;
    options.coordinator.lease_ttl = rendezvous.lease_ttl;
    options.coordinator.suspend_timeout = rendezvous.coordinator_timeout;
    options.holds_lease = [lease = lease_.get()] { return lease->is_leader(); };
    if (options_.on_leads_until) {
      const Clock::duration limit = rendezvous.heartbeat_interval * rendezvous.heartbeat_misses +
                                    Heartbeat::margin(rendezvous.heartbeat_interval);
      options.on_pings = [lease = lease_.get(), tell = options_.on_leads_until, limit] {
        tell(std::max(lease->held_until(), lease::FenceClock::now() + limit));
      };
      options.on_pings();  // until the first ones
    }
    // Not on this thread, which may be blocked while all others wait for the verdict.
    options.on_verdict = [lease = lease_.get(), later = later()](const VerdictMessage& verdict) {
      record_verdict(*lease, verdict, later);
    };
    options.is_recorded = [lease = lease_.get()] { return lease->has_recorded(); };
    options.on_stepped_down = [lease = lease_.get(), later = later(), server = order.server] {
      lease->resign_after(shutdown::resign_timeout);
      later(member_event::ServerSteppedDown{server});
    };
  }
  return CoordinatorServer::start(options);
}

/// Of the coordinator here, in the lease.
std::string JobRendezvous::announced_address() const {
  std::vector<std::string> texts;
  if (const auto& local = options_.spec->rendezvous.local_addr) texts.push_back(*local);
  else texts = advertised_addresses(machine_.addresses);
  std::string text;
  for (const std::string& address : texts) {
    const auto parsed = IpAddress::parse(address);
    if (parsed && parsed->is_link_local() && texts.size() > 1) continue;
    const std::string one = host_port_text(address, server().port());
    if (text.size() + one.size() + 1 > max_announced_bytes) break;
    text += concat(text.empty() ? "" : ",", one);
  }
  return text;
}

void JobRendezvous::carry_out(const member_action::Resign& resign) {
  if (!resign.answers) return lease_->resign(nullptr);
  lease_->resign([later = later()](const Result<void>&) { later(member_event::Resigned{}); });
}

// ---- the worker store

void JobRendezvous::carry_out(const member_action::OpenStore& open) {
  step(member_event::StoreOpened{open.order.round, store_->open(open.order, wanted_store_port())});
}

/// For firewalls that allow some ports only. Without an endpoint --master-port is the coordinator's.
std::uint16_t JobRendezvous::wanted_store_port() const {
  const RendezvousSpec& rendezvous = options_.spec->rendezvous;
  const auto port = static_cast<std::uint16_t>(rendezvous.master_port.value_or(0));
  const bool is_coordinators = std::find(location_.ports.begin(), location_.ports.end(), port) != location_.ports.end();
  return rendezvous.endpoint.empty() || is_coordinators ? std::uint16_t{0} : port;
}

}  // namespace

std::shared_ptr<Rendezvous> make_job_rendezvous(asio::any_io_executor executor, RendezvousOptions options,
                                                RendezvousListener listener) {
  return std::make_shared<JobRendezvous>(std::move(executor), std::move(options), std::move(listener));
}

}  // namespace ddrun::rendezvous
