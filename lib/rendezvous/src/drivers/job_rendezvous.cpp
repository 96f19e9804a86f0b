#include <signal.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <utility>
#include <vector>

#include "agent_link.hpp"
#include "back_ends.hpp"
#include "blocked_owner.hpp"
#include "ddrun/base/address.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/io_context.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/proc.hpp"
#include "ddrun/base/shutdown_timeouts.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/lease/etcd.hpp"
#include "ddrun/lease/lease.hpp"
#include "ddrun/rendezvous/coordinator_server.hpp"
#include "ddrun/rendezvous/find_coordinator.hpp"
#include "ddrun/rendezvous/hmac.hpp"
#include "node_ranks.hpp"
#include "recorded_verdict.hpp"
#include "round_store.hpp"
#include "settings.hpp"
#include "warn_on.hpp"

namespace ddrun::rendezvous {

namespace asio = boost::asio;

namespace {

/// A wait that lasts longer is explained by a notice.
constexpr std::chrono::seconds notice_delay{2};
using shutdown::close_timeout;
/// Beyond the heartbeat limit, after which a lost member's node rank is free: for the loss to be noticed, and another
/// JOIN.
constexpr Milliseconds conflict_margin{2'000};
using shutdown::resign_timeout;
/// Of this machine's coordinator addresses in the lease.
constexpr std::size_t max_announced_bytes = 1024;
/// Between attempts to record the verdict while the lease is held.
constexpr Milliseconds record_retry_interval{500};

/// `on_start` as in RendezvousOptions::on_lease_program. Errors: `not_found` without etcdctl.
Result<lease::ProgramOptions> lease_program(const RendezvousSpec& spec, std::function<void(pid_t)> on_start) {
  lease::ProgramOptions program;
  if (spec.is_etcd()) {
    if (auto there = lease::check_etcdctl(); !there) return tl::unexpected(there.error());
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

/// A job on several machines: connects to its coordinator or runs it, by PROTOCOL.md.
class JobRendezvous final : public Rendezvous, public std::enable_shared_from_this<JobRendezvous> {
 public:
  JobRendezvous(asio::any_io_executor executor, RendezvousOptions options, RendezvousListener listener)
      : executor_(std::move(executor)),
        options_(std::move(options)),
        listener_(std::move(listener)),
        notice_timer_(executor_),
        close_timer_(executor_),
        search_timer_(executor_),
        record_timer_(executor_) {}

  Result<void> open() override;
  [[nodiscard]] bool runs_coordinator() const override { return server_ != nullptr; }
  [[nodiscard]] const std::string& run_id() const override { return options_.spec->rendezvous.id; }
  void join() override;
  void failed(const Failed& failure) override { send(failure); }
  void succeeded() override {
    claim_.succeeded = true;
    send(Succeeded{started_});
  }
  void stopped(const Stopped& stopped) override;
  void leave(const Leave& why) override;
  void pass_signal(int signal) override { send(PassSignal{started_, signal}); }
  void abort(const Abort& why) override;
  void abandon(const std::string& why) override;
  void set_paused(bool /*paused*/) override {}  // time goes on for the other machines
  void async_close(std::function<void()> done) override;

 private:
  Result<void> start_coordinator();
  Result<void> open_lease();

  // With a lease.
  void campaign();
  [[nodiscard]] std::string addresses_text(const CoordinatorServer& server) const;
  void search_coordinator(Deadline until);
  void on_no_leader_in_time();
  void superseded();
  void lead(Term term);
  void follow(const lease::Leader& leader);
  void on_coordinator_not_listening();
  int step_down(const std::string& why);
  void stepped_down(int server);
  void stop_campaigning();
  void record(const VerdictMessage& verdict);
  void recorded(const VerdictMessage& verdict, const Result<void>& result);
  void end_as_recorded();
  void resign();
  /// Binds a handler that is skipped after this object's destruction or the end of the job.
  template <class... Args>
  auto while_active(void (JobRendezvous::*what)(Args...)) {
    return [weak = weak_from_this(), what](const auto&... args) {
      if (const auto self = weak.lock(); self && !self->is_over_) (self.get()->*what)(args...);
    };
  }
  [[nodiscard]] Join join_message() const;

  void send(const FromAgent& message) {
    if (link_ && !is_over_) link_->send(message);
  }
  void on_message(const FromCoordinator& message) {
    std::visit([this](const auto& what) { on(what); }, message);
  }
  void on(const Welcome& welcome);
  void on(const Refused& refused);
  void on(const Waiting& waiting);
  void on(const Open& open);
  void on(const Start& start);
  void on(const Stop& stop);
  void on(const VerdictMessage& verdict);
  void on(const NodeReport& report) { listener_.node_report(report); }
  void on(const Ping&) {}     // handled by AgentLink
  void on(const Resumed&) {}  // handled by AgentLink
  void on(const EventLine& event) { listener_.event(event.json); }
  void on(const Notice& notice) { listener_.notice(notice.text); }
  void on(const PassSignal& pass) {
    if (pass.round == started_) listener_.signal(pass.signal);
  }

  void on(const lease::Leader& leader);
  void on(const lease::tell::NoLeader&) { leader_.reset(); }
  void on(const lease::tell::Lost&) {
    leader_.reset();
    if (server_) server_->suspend();
  }
  void on(const lease::tell::Verdict& verdict);
  void on(const lease::tell::Status& status) {
    lease_error_ = status.text;
    if (!is_over_) listener_.notice(status.text);
  }
  void on(const lease::tell::Unusable& unusable);

  /// Completes a sentence about an event outside of membership.
  [[nodiscard]] const char* when_not_member() const {
    return rejoin_reason_.empty() ? " before the job began" : " while this node was not part of it";
  }

  /// For firewalls that allow some ports only. Without an endpoint --master-port is the coordinator's.
  [[nodiscard]] std::uint16_t wanted_store_port() const {
    const RendezvousSpec& rendezvous = options_.spec->rendezvous;
    const auto port = static_cast<std::uint16_t>(rendezvous.master_port.value_or(0));
    const bool is_coordinators =
        std::find(location_.ports.begin(), location_.ports.end(), port) != location_.ports.end();
    return rendezvous.endpoint.empty() || is_coordinators ? std::uint16_t{0} : port;
  }

  [[nodiscard]] VerdictMessage left_verdict(const char* when) const;
  void on_link_lost(const LinkLoss& loss);
  void post_link_lost(Error error);
  void rejoin(const std::string& why, int signal = 0);
  void join_by(Deadline deadline);
  void recheck_location(const std::vector<std::string>& addresses, Deadline deadline);
  void end(const VerdictMessage& verdict);
  void post_end(VerdictMessage verdict);
  void attempt_failed(const std::string& text, Deadline deadline);
  void notice_later(std::string text);
  void job_done(int server);
  void try_finish_close();
  void await_close();
  void find_coordinator_again();

  asio::any_io_executor executor_;
  RendezvousOptions options_;
  RendezvousListener listener_;
  std::string agent_id_ = random_id();
  CoordinatorLocation location_;
  LocalMachine machine_;
  std::unique_ptr<lease::Lease> lease_;  ///< outlives the servers, which use it
  std::unique_ptr<CoordinatorServer> server_;
  std::unique_ptr<CoordinatorServer> former_server_;  ///< has stepped down, and is still telling its agents
  int servers_ = 0;                                   ///< number of the last one started
  std::unique_ptr<AgentLink> link_;
  std::unique_ptr<AgentLink> former_link_;  ///< given up; kept open while the workers are being stopped
  std::unique_ptr<RoundStore> store_;
  asio::steady_timer notice_timer_;
  asio::steady_timer close_timer_;
  asio::steady_timer search_timer_;
  asio::steady_timer record_timer_;
  Round started_ = 0;
  bool is_member_ = false;  ///< WELCOME was received
  bool retry_noticed_ = false;
  bool job_done_ = false;  ///< all agents have the verdict of the coordinator here
  bool link_closed_ = false;
  RoundClaim claim_;          ///< state of the last START, for another coordinator
  bool has_workers_ = false;  ///< between START and STOPPED
  /// Joins again as a newcomer once the workers are stopped.
  bool rejoining_ = false;
  std::string rejoin_reason_;   ///< empty: not a member before
  std::optional<Leave> leave_;  ///< set once this node has to leave
  std::optional<HmacKey> key_;  ///< from the job's secret; none: --insecure
  // With a lease.
  bool searching_ = false;  ///< until a coordinator accepts this node
  Deadline search_until_{};
  Term term_ = 0;                          ///< of this machine's last leadership; 0: never
  Term joined_term_ = 0;                   ///< of the last coordinator that accepted this node
  std::optional<lease::Leader> leader_;    ///< empty: unknown
  std::string lease_error_;                ///< why it is unknown; empty: the engine works
  std::optional<lease::Leader> followed_;  ///< by link_
  std::optional<std::string> superseded_;  ///< another leader is known, not yet confirmed by our coordinator; why
  std::optional<VerdictMessage> recorded_;
  bool resigned_ = false, resigning_ = false;

  std::function<void()> close_done_;
  bool is_over_ = false;  ///< verdict, refusal or loss: no more messages
};

Result<void> JobRendezvous::open() {
  // Only the derived key is kept.
  if (options_.secret) key_.emplace(options_.secret->bytes());
  options_.secret.reset();
  machine_ = this_machine();
  if (options_.spec->rendezvous.has_lease()) {
    if (auto opened = open_lease(); !opened) return opened;
  } else {
    auto location = find_coordinator(options_.spec->rendezvous, machine_);
    if (!location) return tl::unexpected(location.error());
    location_ = std::move(*location);
  }
  if (!location_.warning.empty()) say(Level::warning, location_.warning);
  store_ = std::make_unique<RoundStore>(executor_, machine_.addresses, options_.spec->rendezvous.store_max_memory,
                                        options_.with_store);
  return location_.is_local ? start_coordinator() : Result<void>();
}

Result<void> JobRendezvous::start_coordinator() {
  const RendezvousSpec& rendezvous = options_.spec->rendezvous;
  CoordinatorServerOptions options;
  if (location_.loopback_only) options.addresses = {"127.0.0.1", "::1"};
  options.ports = location_.ports;
  options.secret = key_;
  options.secret_file = options_.secret_file;
  options.coordinator.host = options_.full_host;
  options.coordinator.job_id = rendezvous.id;
  options.coordinator.own_addresses = machine_.addresses;
  options.coordinator.own_join = join_message();
  options.coordinator.first_round_nodes = rendezvous.first_round_nodes;
  options.coordinator.heartbeat_interval = rendezvous.heartbeat_interval;
  options.coordinator.heartbeat_misses = rendezvous.heartbeat_misses;
  options.on_done = [weak = weak_from_this(), executor = executor_, number = ++servers_] {
    asio::post(executor, [weak, number] {
      if (const auto self = weak.lock()) self->job_done(number);
    });
  };
  options.on_notice = warn_on(executor_);
  if (lease_) {
    options.coordinator.term = term_;
    options.coordinator.has_lease = true;
    options.coordinator.lease_ttl = rendezvous.lease_ttl;
    options.coordinator.suspend_timeout = rendezvous.coordinator_timeout;
    options.holds_lease = [lease = lease_.get()] { return lease->is_leader(); };
    // Not on this thread, which may be blocked while all others wait for the verdict.
    options.on_verdict = [lease = lease_.get(),
                          notify = while_active(&JobRendezvous::recorded)](const VerdictMessage& verdict) {
      lease->record_verdict(serialize_verdict(verdict),
                            [notify, verdict](const Result<void>& result) { notify(verdict, result); });
    };
    options.is_recorded = [lease = lease_.get()] { return lease->has_recorded(); };
    options.on_stepped_down = [weak = weak_from_this(), executor = executor_, number = servers_, lease = lease_.get()] {
      lease->resign_after(resign_timeout);
      asio::post(executor, [weak, number] {
        if (const auto self = weak.lock()) self->stepped_down(number);
      });
    };
  }
  auto server = CoordinatorServer::start(options);
  if (!server) {
    // Several agents on one machine: the first one runs it.
    if (!location_.is_explicit && server.error().cause == std::errc::address_in_use) return {};
    return tl::unexpected(server.error());
  }
  server_ = std::move(*server);
  if (options_.on_listening) options_.on_listening(server_->port());
  return {};
}

Join JobRendezvous::join_message() const {
  const RendezvousSpec& rendezvous = options_.spec->rendezvous;
  Join join;
  join.version = options_.version;
  join.job_id = rendezvous.id;
  join.agent_id = agent_id_;
  join.host = options_.full_host;
  join.node_rank = rendezvous.node_rank.value_or(-1);
  join.local_world_size = static_cast<std::uint32_t>(options_.local_world_size);
  join.role = options_.spec->role;
  join.address = rendezvous.local_addr.value_or("");
  join.runs_coordinator = runs_coordinator();
  join.clock_us =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count();
  join.settings = join_settings(*options_.spec);
  join.own_addresses = advertised_addresses(machine_.addresses);
  if (claim_.term != 0) join.claim = claim_;
  // Machines cloned from one image may share a name.
  join.machine = trim(read_small_file("/proc/sys/kernel/random/boot_id").value_or(""));
  return join;
}

void JobRendezvous::join() {
  const Deadline deadline = Clock::now() + options_.spec->rendezvous.join_timeout;
  if (!lease_) return join_by(deadline);
  if (auto started = lease_->start(); !started) return post_link_lost(started.error());
  search_coordinator(deadline);
}

void JobRendezvous::join_by(Deadline deadline) {
  const RendezvousSpec& rendezvous = options_.spec->rendezvous;
  AgentLinkOptions options;
  if (server_) options.coordinators = {{"127.0.0.1", server_->port()}, {"::1", server_->port()}};
  else options.coordinators = location_.candidates;
  options.secret = key_;
  options.secret_file = options_.secret_file;
  options.is_local = server_ != nullptr;
  options.was_reachable = !rejoin_reason_.empty() && !lease_;
  options.join = join_message();
  options.connect_by = deadline;
  options.conflict_timeout = rendezvous.heartbeat_interval * (rendezvous.heartbeat_misses + 1) + conflict_margin;
  if (const auto& local = rendezvous.local_addr; local && IpAddress::parse(*local) && !server_) {
    options.local_address = *local;
  }
  AgentLinkCallbacks callbacks;
  callbacks.on_message = while_active(&JobRendezvous::on_message);
  callbacks.on_lost = while_active(&JobRendezvous::on_link_lost);
  const auto limit = std::chrono::round<Milliseconds>(deadline - Clock::now());
  callbacks.on_retry = [notify = while_active(&JobRendezvous::attempt_failed), deadline,
                        until = format_duration(limit)](const std::string& why) {
    notify(concat(why, "; trying for ", until), deadline);
  };
  callbacks.on_resolved = [ask = while_active(&JobRendezvous::recheck_location),
                           deadline](const std::vector<std::string>& addresses) { ask(addresses, deadline); };
  if (lease_ && !server_) callbacks.on_not_listening = while_active(&JobRendezvous::on_coordinator_not_listening);
  auto context = make_io_context();
  if (!context) return post_link_lost(context.error());
  serve_blocked_owner(options, **context, executor_, options_.kill_workers, options_.spec->stop.grace);
  link_ = std::make_unique<AgentLink>(executor_, std::move(*context), std::move(options), std::move(callbacks));
  if (auto started = link_->start(); !started) post_link_lost(started.error());
}

/// The endpoint's name may resolve differently by now; the current addresses decide.
void JobRendezvous::recheck_location(const std::vector<std::string>& addresses, Deadline deadline) {
  if (is_member_ || server_ || location_.is_explicit) return;
  // The lost coordinator may still run: a second one would start the job anew.
  if (!rejoin_reason_.empty()) return;
  LocalMachine machine = machine_;
  machine.resolve = [&](const std::string&) { return addresses; };
  const auto location = find_coordinator(options_.spec->rendezvous, machine);
  if (!location) return on_link_lost({location.error(), false});
  if (!location->is_local || !start_coordinator() || !server_) return;
  link_.reset();
  join_by(deadline);
}

/// The process that held the coordinator's port may not have been a coordinator, or has ended: agents started at the
/// same moment can block each other.
void JobRendezvous::attempt_failed(const std::string& text, Deadline deadline) {
  if (!std::exchange(retry_noticed_, true)) notice_later(text);
  if (is_member_ || !rejoin_reason_.empty() || server_ || !location_.is_local) return;
  if (!start_coordinator() || !server_) return;
  link_.reset();
  join_by(deadline);
}

void JobRendezvous::notice_later(std::string text) {
  notice_timer_.expires_after(notice_delay);
  notice_timer_.async_wait([weak = weak_from_this(), text = std::move(text)](const boost::system::error_code& ec) {
    const auto self = weak.lock();
    if (!ec && self && !self->is_over_) self->listener_.notice(text);
  });
}

void JobRendezvous::on(const Welcome& welcome) {
  is_member_ = true;
  searching_ = false;
  superseded_.reset();
  search_timer_.cancel();
  notice_timer_.cancel();
  // Tells the next coordinator that the job is not new.
  if (claim_.term == 0) claim_.term = welcome.term;
  joined_term_ = welcome.term;
  if (lease_ && !server_) stop_campaigning();
}

void JobRendezvous::on(const Refused& refused) {
  const bool may_rejoin = refused.kind == RefusalKind::lost || refused.kind == RefusalKind::moved;
  if (may_rejoin && is_member_ && (!server_ || lease_)) {
    claim_.moved = refused.kind == RefusalKind::moved;
    return rejoin(refused.why, step_down(refused.why));
  }
  VerdictMessage verdict;
  if (refused.kind == RefusalKind::permanent && leave_) {
    verdict = left_verdict("");  // the local coordinator releases this node like any other
  } else if (refused.kind == RefusalKind::not_needed) {
    const std::string what = concat("this node was not needed: ", refused.why);
    if (started_ == 0 && run_id() == RendezvousSpec().id) {
      // It may have been another job with the same program elsewhere.
      verdict.kind = VerdictKind::launcher_failed;
      verdict.exit_code = exit_codes::launcher_failed;
      verdict.host = options_.host;
      verdict.why = concat(what, ", and nothing has run here; a job with a name (--rdzv-id) takes that for success");
    } else {
      listener_.notice(what);
    }
  } else {
    verdict.kind = VerdictKind::launcher_failed;
    verdict.exit_code = exit_codes::launcher_failed;
    verdict.host = options_.host;
    verdict.why = refused.why;
  }
  end(verdict);
}

void JobRendezvous::on(const Waiting& waiting) {
  const std::string nodes = waiting.min_nodes == waiting.max_nodes
                                ? std::to_string(waiting.min_nodes)
                                : concat(waiting.min_nodes, " to ", waiting.max_nodes);
  const std::string text = waiting.spare ? concat("this node is a spare and waits for ", waiting.waiting_for)
                                         : concat("waiting for ", waiting.waiting_for, "; ", waiting.joined, " of ",
                                                  nodes, waiting.joined == 1 ? " is there" : " are there");
  if (waiting.spare) listener_.notice(text);
  else notice_later(text);
}

void JobRendezvous::on(const Open& open) {
  Open order = open;
  if (order.port == 0) order.port = wanted_store_port();
  const auto port = store_->open(order);
  if (!port) {
    send(Abort{AbortKind::cannot_go_on, exit_codes::launcher_failed,
               concat("the worker store on ", options_.host, ": ", port.error().message)});
    return;
  }
  send(Opened{order.round, *port});
}

void JobRendezvous::on(const Start& start) {
  notice_timer_.cancel();
  started_ = start.round;
  has_workers_ = true;
  claim_ = {start.term, start.round, start.ranks.node_rank, start.ranks.node_count, start.job_state, false, false};
  if (start.ranks.node_rank != 0) store_->close();
  RankAssignment ranks = start.ranks;
  options_.host = ranks.host;
  ranks.run_id = run_id();
  ranks.round = start.round;
  listener_.round_begins(start.round, ranks);
}

void JobRendezvous::on(const Stop& stop) {
  if (stop.round == started_) {
    listener_.stop(stop);
  } else {
    // OPEN of a round that was never started: nothing runs.
    send(Stopped{stop.round, {}, {}});
  }
}

void JobRendezvous::on(const VerdictMessage& verdict) { end(verdict); }

void JobRendezvous::end(const VerdictMessage& verdict) {
  is_over_ = true;
  notice_timer_.cancel();
  search_timer_.cancel();
  listener_.verdict(verdict);
}

void JobRendezvous::post_end(VerdictMessage verdict) {
  is_over_ = true;
  rejoining_ = false;
  asio::post(executor_, [self = shared_from_this(), verdict = std::move(verdict)] { self->end(verdict); });
}

void JobRendezvous::stopped(const Stopped& stopped) {
  has_workers_ = false;
  former_link_.reset();
  if (std::exchange(rejoining_, false)) return find_coordinator_again();
  send(stopped);
}

void JobRendezvous::on_link_lost(const LinkLoss& loss) {
  // A member that lost contact with a running coordinator rejoins it, or the next one.
  if (is_member_ && (lease_ ? true : loss.unreachable && !server_)) {
    if (has_workers_) former_link_ = std::move(link_);
    return rejoin(loss.error.message, step_down(loss.error.message));
  }
  is_over_ = true;
  notice_timer_.cancel();
  search_timer_.cancel();
  link_.reset();  // nothing left to deliver
  const std::string before = rejoin_reason_.empty() || is_member_ ? "" : concat(rejoin_reason_, "; then ");
  listener_.coordinator_lost(concat(before, loss.error.message));
}

/// For errors within a call of the owner: the callback must not come from within it.
void JobRendezvous::post_link_lost(Error error) {
  asio::post(executor_, [notify = while_active(&JobRendezvous::on_link_lost),
                         loss = LinkLoss{std::move(error), false}] { notify(loss); });
}

/// This node lost its membership, and the job may go on: joins as a newcomer, after its workers were stopped with
/// `signal`.
void JobRendezvous::rejoin(const std::string& why, int signal) {
  rejoin_reason_ = why;
  agent_id_ = random_id();
  is_member_ = false;
  superseded_.reset();
  retry_noticed_ = false;
  link_.reset();
  store_->close();
  if (lease_) campaign();
  if (!has_workers_) {
    listener_.notice(concat(why, lease_ ? "; looking for the next coordinator" : "; joining again"));
    return find_coordinator_again();
  }
  rejoining_ = true;
  listener_.stop(Stop{started_, true, concat(why, "; stopping the workers, to join again"), signal});
}

void JobRendezvous::find_coordinator_again() {
  // The coordinator that got LEAVE no longer knows this node.
  if (leave_) return post_end(left_verdict(when_not_member()));
  const Deadline deadline = Clock::now() + options_.spec->rendezvous.coordinator_timeout;
  if (lease_) search_coordinator(deadline);
  else join_by(deadline);
}

// ---- with a lease, which decides again and again where the coordinator runs

Result<void> JobRendezvous::open_lease() {
  const RendezvousSpec& rendezvous = options_.spec->rendezvous;
  auto program = lease_program(rendezvous, options_.on_lease_program);
  if (!program) return tl::unexpected(program.error());
  location_.is_explicit = true;
  location_.ports = {static_cast<std::uint16_t>(rendezvous.coordinator_port)};
  auto listener = [weak = weak_from_this()](const lease::Tell& what) {
    if (const auto self = weak.lock()) std::visit([&](const auto& told) { self->on(told); }, what);
  };
  const int candidates = std::max(rendezvous.max_nodes, rendezvous.agents_expected);
  auto made = lease::Lease::make(executor_, {rendezvous.id, rendezvous.lease_ttl, candidates}, std::move(*program),
                                 std::move(listener));
  if (!made) return tl::unexpected(made.error());
  lease_ = std::move(*made);
  return {};
}

void JobRendezvous::campaign() { lease_->campaign(server_ ? addresses_text(*server_) : ""); }

/// A member is no candidate: its coordinator, if it lives, gets the lease again as soon as the engine is back.
void JobRendezvous::stop_campaigning() {
  if (lease_->is_candidate()) lease_->resign(nullptr);
}

/// The local coordinator's addresses, as announced in the lease.
std::string JobRendezvous::addresses_text(const CoordinatorServer& server) const {
  std::vector<std::string> texts;
  if (const auto& local = options_.spec->rendezvous.local_addr) texts.push_back(*local);
  else texts = advertised_addresses(machine_.addresses);
  std::string text;
  for (const std::string& address : texts) {
    const auto parsed = IpAddress::parse(address);
    if (parsed && parsed->is_link_local() && texts.size() > 1) continue;
    const std::string one = host_port_text(address, server.port());
    if (text.size() + one.size() + 1 > max_announced_bytes) break;
    text += concat(text.empty() ? "" : ",", one);
  }
  return text;
}

void JobRendezvous::search_coordinator(Deadline until) {
  searching_ = true;
  search_until_ = until;
  if (recorded_) return end_as_recorded();
  if (server_) return join_by(until);
  if (!lease_->is_candidate()) campaign();
  search_timer_.expires_at(until);
  search_timer_.async_wait(
      [notify = while_active(&JobRendezvous::on_no_leader_in_time)](const boost::system::error_code& ec) {
        if (!ec) notify();
      });
  if (leader_) return follow(*leader_);
  notice_later(
      concat("waiting for a coordinator; ", lease_error_.empty() ? "no machine leads the job yet" : lease_error_));
}

/// If there is a link, it reports the reason.
void JobRendezvous::on_no_leader_in_time() {
  if (!searching_ || link_) return;
  const std::string why =
      concat("no machine has taken the lead of the job in time", lease_error_.empty() ? "" : ": ", lease_error_);
  on_link_lost({Error{Errc::timeout, why, {}}, false});
}

void JobRendezvous::on(const lease::Leader& leader) {
  leader_ = leader;
  lease_error_.clear();
  if (is_over_) return;
  if (leader.is_self) return lead(leader.term);
  const std::string why = concat("another machine leads the job, in term ", leader.term);
  // It notifies its members, including this node.
  if (server_) return server_->step_down(why);
  if (searching_) return follow(leader);
  if (!is_member_ || leader.address.empty() || leader.term <= joined_term_) return;
  // Either the same coordinator has a new term, or it has not noticed yet that it lost the lease.
  joined_term_ = leader.term;
  if (!followed_ || followed_->address == leader.address) return;
  // Its message may still be on the way. While workers are being stopped it may be handing over, which saves a restart:
  // wait longer.
  superseded_ = why;
  const Milliseconds interval = options_.spec->rendezvous.heartbeat_interval;
  search_timer_.expires_after(has_workers_ ? interval / 4 : interval);
  search_timer_.async_wait([notify = while_active(&JobRendezvous::superseded)](const boost::system::error_code& ec) {
    if (!ec) notify();
  });
}

/// This node's coordinator has not confirmed the new leader in time.
void JobRendezvous::superseded() {
  if (superseded_) rejoin(*std::exchange(superseded_, std::nullopt));
}

/// A new term for the running coordinator, or the first one.
void JobRendezvous::lead(Term term) {
  if (!lease_->is_candidate()) return lease_->resign(nullptr);  // too late
  if (std::exchange(term_, term) == term && server_) return;
  if (server_) return server_->lead(term);
  if (auto started = start_coordinator(); !started) {
    resign();
    return on_link_lost({started.error(), false});
  }
  campaign();  // with the address
  if (!searching_) return;
  link_.reset();
  join_by(search_until_);
}

void JobRendezvous::follow(const lease::Leader& leader) {
  if (leader.is_self || leader.address.empty() || (link_ && followed_ == leader)) return;
  // The coordinator that has just sent this node away.
  if (claim_.moved && leader.term == claim_.term) return;
  followed_ = leader;
  location_.candidates.clear();
  for (const std::string& text : split(leader.address, ',')) {
    const auto at = split_host_port(text);
    const auto port = at && at->port ? parse_integer(*at->port, 1, 65535) : fail(Errc::invalid_argument, "no port");
    if (at && port) location_.candidates.push_back({at->host, static_cast<std::uint16_t>(*port)});
  }
  nearest_first(location_.candidates, machine_.addresses);
  link_.reset();
  join_by(search_until_);
}

/// The leader has served this node and refuses connections now, so it has ended: depose it instead of waiting for the
/// lease to expire. If it lives behind a device that refuses, it cannot begin a round alone, and the next coordinator
/// waits for the members of the last round or the lease's time to live.
void JobRendezvous::on_coordinator_not_listening() {
  if (!searching_ || !followed_ || followed_->term != joined_term_) return;
  if (options_.spec->rendezvous.min_nodes > 1) lease_->depose(followed_->term);
}

/// The local coordinator, if any, dismisses its agents and ends. Gives the lease back, so that the next leader has a
/// new term. Returns the signal for this machine's workers: no grace, since the next coordinator does not wait for
/// them.
int JobRendezvous::step_down(const std::string& why) {
  if (!server_) return 0;
  server_->step_down(why);
  former_server_ = std::move(server_);
  lease_->resign(nullptr);
  return SIGKILL;
}

/// The local coordinator has dismissed its members. If this node was stopping workers and not a member, it searches for
/// the next coordinator as they do.
void JobRendezvous::stepped_down(int server) {
  resign();
  if (is_over_ || is_member_ || !server_ || server != servers_) return;
  former_server_ = std::move(server_);
  if (!searching_) return;
  link_.reset();
  search_coordinator(search_until_);
}

void JobRendezvous::record(const VerdictMessage& verdict) {
  if (!server_) return;
  lease_->record_verdict(serialize_verdict(verdict), [notify = while_active(&JobRendezvous::recorded), verdict](
                                                         const Result<void>& result) { notify(verdict, result); });
}

/// The verdict is sent only once no other coordinator can run the job again.
void JobRendezvous::recorded(const VerdictMessage& verdict, const Result<void>& result) {
  if (!server_) return;
  if (result) return server_->recorded();
  if (!lease_->is_leader()) return;  // repeated once it leads again
  record_timer_.expires_after(record_retry_interval);
  record_timer_.async_wait(
      [notify = while_active(&JobRendezvous::record), verdict](const boost::system::error_code& ec) {
        if (!ec) notify(verdict);
      });
}

void JobRendezvous::on(const lease::tell::Verdict& verdict) {
  if (is_over_) return;
  recorded_ = parse_verdict(verdict.text);
  if (!recorded_) return;
  if (server_ && !lease_->is_leader()) return server_->step_down("the job has ended meanwhile");
  if (searching_) end_as_recorded();
}

void JobRendezvous::end_as_recorded() {
  VerdictMessage verdict = *recorded_;
  if (claim_.term == 0) {
    // Never a member: the work of this node was not done.
    verdict.kind = VerdictKind::launcher_failed;
    verdict.exit_code = exit_codes::launcher_failed;
    verdict.host = options_.host;
    verdict.why = concat("the job ", run_id(), " has ended already: ", recorded_->why,
                         "; to run it once more give it another --rdzv-id");
  }
  link_.reset();
  end(verdict);
}

/// The running job continues, but without failover.
void JobRendezvous::on(const lease::tell::Unusable& unusable) {
  lease_error_ = unusable.error.message;
  if (is_over_) return;
  if (is_member_) return listener_.notice(lease_error_);
  on_link_lost({unusable.error, false});
}

void JobRendezvous::resign() {
  if (!lease_) return;
  lease_->resign([weak = weak_from_this()](const Result<void>&) {
    const auto self = weak.lock();
    if (!self) return;
    self->resigned_ = true;
    self->try_finish_close();
  });
}

// ---- the end of this node's part

void JobRendezvous::leave(const Leave& why) {
  leave_ = why;
  if (is_member_) return send(why);
  if (!is_over_) post_end(left_verdict(when_not_member()));
}

VerdictMessage JobRendezvous::left_verdict(const char* when) const {
  VerdictMessage verdict;
  verdict.kind = VerdictKind::stopped_by_signal;
  verdict.exit_code = exit_codes::signal_base + leave_->signal;
  verdict.signal = leave_->signal;
  verdict.host = options_.host;
  verdict.why = concat("stopped by ", signal_name(leave_->signal),
                       leave_->sender.empty() ? "" : concat(" from ", leave_->sender), when);
  return verdict;
}

void JobRendezvous::abort(const Abort& why) {
  if (is_member_) return send(why);
  VerdictMessage verdict;
  verdict.kind = why.kind == AbortKind::cannot_go_on ? VerdictKind::launcher_failed : VerdictKind::timed_out;
  verdict.exit_code = why.exit_code;
  verdict.host = options_.host;
  verdict.why = concat(why.what, ",", when_not_member());
  if (!is_over_) post_end(std::move(verdict));
}

void JobRendezvous::abandon(const std::string& /*why*/) {
  is_over_ = true;
  rejoining_ = false;
  notice_timer_.cancel();
  search_timer_.cancel();
  link_.reset();
  former_link_.reset();
  former_server_.reset();
  server_.reset();
  lease_.reset();
}

void JobRendezvous::async_close(std::function<void()> done) {
  is_over_ = true;
  notice_timer_.cancel();
  search_timer_.cancel();
  close_done_ = std::move(done);
  close_timer_.expires_after(close_timeout);
  await_close();
  if (!link_) {
    link_closed_ = true;
    return try_finish_close();
  }
  link_->close([self = shared_from_this()] {
    self->link_closed_ = true;
    self->try_finish_close();
  });
}

void JobRendezvous::await_close() {
  close_timer_.async_wait([self = shared_from_this()](const boost::system::error_code& ec) {
    if (ec) return;
    self->link_closed_ = self->job_done_ = self->resigned_ = true;
    self->try_finish_close();
  });
}

void JobRendezvous::job_done(int server) {
  if (server != servers_ || !server_) {
    former_server_.reset();
    return;
  }
  job_done_ = true;
  try_finish_close();
}

void JobRendezvous::try_finish_close() {
  if (!close_done_ || !link_closed_ || (server_ && !job_done_)) return;
  if (term_ != 0 && lease_ && !resigned_) {
    if (!std::exchange(resigning_, true)) {
      resign();
      close_timer_.expires_after(resign_timeout);
      await_close();
    }
    return;
  }
  close_timer_.cancel();
  asio::post(executor_, [self = shared_from_this()] {
    self->link_.reset();
    self->former_link_.reset();
    self->former_server_.reset();
    self->server_.reset();
    self->lease_.reset();
    self->store_.reset();
    if (auto done = std::exchange(self->close_done_, {})) done();
  });
}

}  // namespace

std::shared_ptr<Rendezvous> make_job_rendezvous(asio::any_io_executor executor, RendezvousOptions options,
                                                RendezvousListener listener) {
  return std::make_shared<JobRendezvous>(std::move(executor), std::move(options), std::move(listener));
}

}  // namespace ddrun::rendezvous
