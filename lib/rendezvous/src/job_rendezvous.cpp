#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <utility>
#include <vector>

#include "agent_link.hpp"
#include "back_ends.hpp"
#include "ddrun/base/address.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/rendezvous/coordinator_server.hpp"
#include "ddrun/rendezvous/find_coordinator.hpp"
#include "ddrun/rendezvous/hmac.hpp"
#include "ddrun/store/tcp_server.hpp"
#include "node_ranks.hpp"
#include "settings.hpp"
#include "warn_on.hpp"

namespace ddrun::rendezvous {

namespace asio = boost::asio;

namespace {

/// A user who waits longer than this is told what for.
constexpr std::chrono::seconds patience{2};
/// How long a coordinator waits until all agents have heard the verdict: it gives late ones 5 s by itself.
constexpr std::chrono::seconds last_words{6};
/// For an answer to JOIN, beyond what a silent member is given.
constexpr Milliseconds time_to_answer{10'000};

/// The worker store of a job on several machines, while it lies with this agent: empty for each round, open to the
/// machines of the round only, and listening on the address that workers are told and nowhere else.
class RoundStore {
 public:
  /// Whom the store cuts off is told as a warning on `executor`, whose context must outlive this object.
  /// `machine_addresses`: of this machine. Without `with_store` a worker will listen there itself: a free port is
  /// looked for and given up again.
  RoundStore(asio::any_io_executor executor, std::vector<IpAddress> machine_addresses, std::uint64_t max_memory,
             bool with_store)
      : executor_(std::move(executor)),
        machine_addresses_(std::move(machine_addresses)),
        max_memory_(max_memory),
        with_store_(with_store) {}

  /// Opens it for a round and gives its port. Blocks for well under a millisecond. Fails with `unavailable` if it
  /// cannot listen, and where the order leaves open who may come or where workers find it.
  Result<std::uint16_t> open(const Open& order);

  /// Another node has it now.
  void close() { server_.reset(); }

 private:
  asio::any_io_executor executor_;
  std::vector<IpAddress> machine_addresses_;
  std::uint64_t max_memory_;
  bool with_store_;
  std::vector<std::string> listens_on_;
  std::unique_ptr<store::TcpServer> server_;
};

Result<std::uint16_t> RoundStore::open(const Open& order) {
  std::vector<std::string> addresses{order.address};
  const auto address = IpAddress::parse(order.address);
  if (address && address->is_link_local()) {
    return fail(
        Errc::invalid_argument,
        concat("no address is known by which the other machines reach this one but ", order.address,
               ", which means nothing without an interface; give one (--local-addr), or the endpoint by another"));
  }
  // To the store an empty list is everybody.
  if (order.addresses.empty()) {
    return fail(Errc::protocol, "the coordinator does not say which machines may use it");
  }
  const bool ours =
      address && (address->is_loopback() || std::find(machine_addresses_.begin(), machine_addresses_.end(), *address) !=
                                                machine_addresses_.end());
  // A name, or an address that something in front of this machine translates: where it arrives here is not known.
  if (!ours) addresses = {"0.0.0.0", "::"};
  if (server_ && addresses == listens_on_ && (order.port == 0 || order.port == server_->port())) {
    if (auto emptied = server_->new_round(order.addresses); !emptied) return tl::unexpected(emptied.error());
    return server_->port();
  }
  server_.reset();
  store::TcpServerOptions options;
  options.addresses = addresses;
  options.port = order.port;
  options.max_memory = max_memory_;
  options.allowed_peers = order.addresses;
  options.on_refusal = warn_on(executor_);
  auto started = store::TcpServer::start(options);
  if (!started) return tl::unexpected(started.error());
  const std::uint16_t port = (*started)->port();
  if (with_store_) {
    server_ = std::move(*started);
    listens_on_ = std::move(addresses);
  }
  return port;
}

/// A job on several machines: finds the coordinator or runs it. PROTOCOL.md is what it speaks.
class JobRendezvous final : public Rendezvous, public std::enable_shared_from_this<JobRendezvous> {
 public:
  JobRendezvous(asio::any_io_executor executor, RendezvousOptions options, RendezvousListener listener)
      : executor_(std::move(executor)),
        options_(std::move(options)),
        listener_(std::move(listener)),
        notice_timer_(executor_),
        close_timer_(executor_) {}

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
  void abort(const Abort& why) override;
  void abandon(const std::string& why) override;
  void stand_still(bool /*still*/) override {}  // the others' time goes on
  void async_close(std::function<void()> done) override;

 private:
  Result<void> start_coordinator();
  [[nodiscard]] Join join_message() const;

  void send(const FromAgent& message) {
    if (link_ && !over_) link_->send(message);
  }
  void heard(const FromCoordinator& message) {
    std::visit([this](const auto& what) { on(what); }, message);
  }
  void on(const Welcome& welcome);
  void on(const Refused& refused);
  void on(const Waiting& waiting);
  void on(const Open& asked);
  void on(const Start& start);
  void on(const Stop& stop);
  void on(const VerdictMessage& verdict);
  void on(const NodeReport& report) { listener_.node_report(report); }
  void on(const Ping&) {}     // the link answers
  void on(const Resumed&) {}  // is the link's, too
  void on(const EventLine& event) { listener_.event(event.json); }
  void on(const Notice& notice) { listener_.notice(notice.text); }

  /// For a sentence about what happened while this node was no member.
  [[nodiscard]] const char* outside() const {
    return why_it_comes_back_.empty() ? " before the job began" : " while this node was not part of it";
  }

  /// Where a firewall lets only some ports through. Without an endpoint --master-port is the coordinator's.
  [[nodiscard]] std::uint16_t wanted_store_port() const {
    const RendezvousSpec& rendezvous = options_.spec->rendezvous;
    const auto port = static_cast<std::uint16_t>(rendezvous.master_port.value_or(0));
    const bool is_coordinators =
        std::find(location_.ports.begin(), location_.ports.end(), port) != location_.ports.end();
    return rendezvous.endpoint.empty() || is_coordinators ? std::uint16_t{0} : port;
  }

  void lost(const LinkLoss& loss);
  void come_back(const std::string& why);
  void join_by(Deadline deadline);
  void ask_again_who_runs_it(const std::vector<std::string>& addresses, Deadline deadline);
  void end(const VerdictMessage& verdict);
  void end_later(VerdictMessage verdict);
  void tell_later(std::string text);
  void job_done();
  void close_up();

  asio::any_io_executor executor_;
  RendezvousOptions options_;
  RendezvousListener listener_;
  std::string agent_id_ = random_id();
  CoordinatorLocation location_;
  MachineFacts machine_;
  std::unique_ptr<CoordinatorServer> server_;
  std::unique_ptr<AgentLink> link_;
  std::unique_ptr<RoundStore> store_;
  asio::steady_timer notice_timer_;
  asio::steady_timer close_timer_;
  Round started_ = 0;
  bool member_ = false;  ///< Welcome was heard
  bool told_of_retry_ = false;
  bool job_done_ = false;  ///< of the coordinator here: all agents have heard the verdict
  bool link_closed_ = false;
  RoundClaim claim_;          ///< what the last START gives this node, should another coordinator take over
  bool has_workers_ = false;  ///< was given START and has not said STOPPED
  /// This node is to join again, as a newcomer, once its workers are stopped.
  bool coming_back_ = false;
  std::string why_it_comes_back_;  ///< empty: it has not been a member before
  std::optional<HmacKey> key_;     ///< of the job's secret; none: --insecure
  std::function<void()> close_done_;
  bool over_ = false;  ///< verdict, refusal or loss: nothing more is said or heard
};

Result<void> JobRendezvous::open() {
  // All that is remembered of the secret.
  if (options_.secret) key_.emplace(options_.secret->bytes());
  options_.secret.reset();
  machine_ = this_machine();
  auto location = find_coordinator(options_.spec->rendezvous, machine_);
  if (!location) return tl::unexpected(location.error());
  location_ = std::move(*location);
  if (!location_.warning.empty()) say(Level::warning, location_.warning);
  store_ = std::make_unique<RoundStore>(executor_, machine_.addresses, options_.spec->rendezvous.store_max_memory,
                                        options_.with_store);
  return location_.is_here ? start_coordinator() : Result<void>();
}

Result<void> JobRendezvous::start_coordinator() {
  const RendezvousSpec& rendezvous = options_.spec->rendezvous;
  CoordinatorServerOptions options;
  if (location_.loopback_only) options.addresses = {"127.0.0.1", "::1"};
  options.ports = location_.ports;
  options.secret = key_;
  options.coordinator.host = options_.host;
  options.coordinator.job_id = rendezvous.id;
  options.coordinator.own_addresses = machine_.addresses;
  options.coordinator.own = join_message();
  options.coordinator.heartbeat_interval = rendezvous.heartbeat_interval;
  options.coordinator.heartbeat_misses = rendezvous.heartbeat_misses;
  options.on_done = [weak = weak_from_this(), executor = executor_] {
    asio::post(executor, [weak] {
      if (const auto self = weak.lock()) self->job_done();
    });
  };
  options.on_notice = warn_on(executor_);
  auto server = CoordinatorServer::start(options);
  if (!server) {
    // Several agents on one machine: the first one runs it.
    if (!location_.is_certain && server.error().cause == std::errc::address_in_use) return {};
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
  join.host = options_.host;
  join.node_rank = rendezvous.node_rank.value_or(-1);
  join.local_world_size = static_cast<std::uint32_t>(options_.local_world_size);
  join.role = options_.spec->role;
  join.address = rendezvous.local_addr.value_or("");
  join.runs_coordinator = runs_coordinator();
  join.clock_us =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count();
  join.settings = join_settings(*options_.spec);
  join.agents_expected = static_cast<std::uint32_t>(rendezvous.agents_expected);
  join.own_addresses = addresses_to_tell(machine_.addresses);
  if (claim_.term != 0) join.claim = claim_;
  return join;
}

void JobRendezvous::join() { join_by(Clock::now() + options_.spec->rendezvous.join_timeout); }

void JobRendezvous::join_by(Deadline deadline) {
  const RendezvousSpec& rendezvous = options_.spec->rendezvous;
  AgentLinkOptions options;
  if (server_) options.coordinators = {{"127.0.0.1", server_->port()}, {"::1", server_->port()}};
  else options.coordinators = location_.candidates;
  options.secret = key_;
  options.is_here = server_ != nullptr;
  options.was_there = !why_it_comes_back_.empty();
  options.join = join_message();
  options.connect_by = deadline;
  // A place that is disputed takes the coordinator as long as it waits for one that is silent.
  options.answer_within = rendezvous.heartbeat_interval * rendezvous.heartbeat_misses + time_to_answer;
  if (const auto& local = rendezvous.local_addr; local && IpAddress::parse(*local) && !server_) {
    options.local_address = *local;
  }
  AgentLinkCallbacks callbacks;
  callbacks.on_message = [weak = weak_from_this()](const FromCoordinator& message) {
    if (const auto self = weak.lock(); self && !self->over_) self->heard(message);
  };
  callbacks.on_lost = [weak = weak_from_this()](const LinkLoss& loss) {
    if (const auto self = weak.lock(); self && !self->over_) self->lost(loss);
  };
  const auto limit = std::chrono::round<Milliseconds>(deadline - Clock::now());
  callbacks.on_retry = [weak = weak_from_this(), until = format_duration(limit)](const std::string& why) {
    const auto self = weak.lock();
    if (self && !self->over_ && !std::exchange(self->told_of_retry_, true)) {
      self->tell_later(concat(why, "; trying for ", until));
    }
  };
  callbacks.on_looked_up = [weak = weak_from_this(), deadline](const std::vector<std::string>& addresses) {
    if (const auto self = weak.lock(); self && !self->over_) self->ask_again_who_runs_it(addresses, deadline);
  };
  link_ = std::make_unique<AgentLink>(executor_, std::move(options), std::move(callbacks));
  if (auto started = link_->start(); !started) {
    asio::post(executor_, [self = shared_from_this(), error = started.error()] {
      if (!self->over_) self->lost({error, false});
    });
  }
}

/// The endpoint's name may have had no address when this agent began, or another's: whose it is now decides.
void JobRendezvous::ask_again_who_runs_it(const std::vector<std::string>& addresses, Deadline deadline) {
  if (member_ || server_ || location_.is_certain) return;
  MachineFacts machine = machine_;
  machine.resolve = [&](const std::string&) { return addresses; };
  const auto location = find_coordinator(options_.spec->rendezvous, machine);
  if (!location) return lost({location.error(), false});
  if (!location->is_here || !start_coordinator() || !server_) return;
  link_.reset();
  join_by(deadline);
}

void JobRendezvous::tell_later(std::string text) {
  notice_timer_.expires_after(patience);
  notice_timer_.async_wait([weak = weak_from_this(), text = std::move(text)](const boost::system::error_code& ec) {
    const auto self = weak.lock();
    if (!ec && self && !self->over_) self->listener_.notice(text);
  });
}

void JobRendezvous::on(const Welcome&) {
  member_ = true;
  notice_timer_.cancel();
}

void JobRendezvous::on(const Refused& refused) {
  const bool may_come_back = refused.kind == RefusalKind::given_up || refused.kind == RefusalKind::moved;
  if (may_come_back && member_ && !server_) {
    claim_.moved = refused.kind == RefusalKind::moved;
    return come_back(refused.why);
  }
  VerdictMessage verdict;
  if (refused.kind == RefusalKind::not_needed) {
    listener_.notice(concat("this node was not needed: ", refused.why));
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
  const std::string text = waiting.spare ? concat("this node is a spare and waits for ", waiting.what_for)
                                         : concat("waiting for ", waiting.what_for, "; ", waiting.here, " of ", nodes,
                                                  waiting.here == 1 ? " is there" : " are there");
  if (waiting.spare) listener_.notice(text);
  else tell_later(text);
}

void JobRendezvous::on(const Open& asked) {
  Open order = asked;
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
  claim_ = {start.term, start.round, start.ranks.node_rank, start.ranks.node_count, start.memory, false, false};
  if (start.ranks.node_rank != 0) store_->close();
  RankAssignment ranks = start.ranks;
  ranks.run_id = run_id();
  ranks.round = start.round;
  listener_.round_begins(start.round, ranks);
}

void JobRendezvous::on(const Stop& stop) {
  if (stop.round == started_) {
    listener_.stop(stop);
  } else {
    // It was to open the store for a round that did not come about: nothing runs.
    send(Stopped{stop.round, {}, {}});
  }
}

void JobRendezvous::on(const VerdictMessage& verdict) { end(verdict); }

void JobRendezvous::end(const VerdictMessage& verdict) {
  over_ = true;
  notice_timer_.cancel();
  listener_.verdict(verdict);
}

void JobRendezvous::end_later(VerdictMessage verdict) {
  over_ = true;
  coming_back_ = false;
  asio::post(executor_, [self = shared_from_this(), verdict = std::move(verdict)] { self->end(verdict); });
}

void JobRendezvous::stopped(const Stopped& stopped) {
  has_workers_ = false;
  if (std::exchange(coming_back_, false)) return join_by(Clock::now() + options_.spec->rendezvous.coordinator_timeout);
  send(stopped);
}

void JobRendezvous::lost(const LinkLoss& loss) {
  // What has been a member, and lost sight of a coordinator that may live, looks for it again.
  if (member_ && loss.unreachable && !server_) return come_back(loss.error.message);
  over_ = true;
  notice_timer_.cancel();
  link_.reset();  // nothing is left to be delivered
  const std::string before = why_it_comes_back_.empty() || member_ ? "" : concat(why_it_comes_back_, "; then ");
  listener_.coordinator_lost(concat(before, loss.error.message));
}

/// This node's place is lost, the job may go on: as a newcomer, once its workers are stopped.
void JobRendezvous::come_back(const std::string& why) {
  why_it_comes_back_ = why;
  agent_id_ = random_id();
  member_ = false;
  told_of_retry_ = false;
  link_.reset();
  store_->close();
  if (!has_workers_) {
    listener_.notice(concat(why, "; joining again"));
    return join_by(Clock::now() + options_.spec->rendezvous.coordinator_timeout);
  }
  coming_back_ = true;
  listener_.stop(Stop{started_, true, concat(why, "; stopping the workers, to join again"), 0});
}

void JobRendezvous::leave(const Leave& why) {
  if (member_) return send(why);
  VerdictMessage verdict;
  verdict.kind = VerdictKind::stopped_by_signal;
  verdict.exit_code = exit_codes::signal_base + why.signal;
  verdict.signal = why.signal;
  verdict.host = options_.host;
  verdict.why =
      concat("stopped by ", signal_name(why.signal), why.sender.empty() ? "" : concat(" from ", why.sender), outside());
  if (!over_) end_later(std::move(verdict));
}

void JobRendezvous::abort(const Abort& why) {
  if (member_) return send(why);
  VerdictMessage verdict;
  verdict.kind = why.kind == AbortKind::cannot_go_on ? VerdictKind::launcher_failed : VerdictKind::timed_out;
  verdict.exit_code = why.exit_code;
  verdict.host = options_.host;
  verdict.why = concat(why.what, ",", outside());
  if (!over_) end_later(std::move(verdict));
}

void JobRendezvous::abandon(const std::string& /*why*/) {
  over_ = true;
  notice_timer_.cancel();
  link_.reset();
  server_.reset();
}

void JobRendezvous::async_close(std::function<void()> done) {
  over_ = true;
  notice_timer_.cancel();
  close_done_ = std::move(done);
  close_timer_.expires_after(last_words);
  close_timer_.async_wait([self = shared_from_this()](const boost::system::error_code& ec) {
    if (ec) return;
    self->link_closed_ = self->job_done_ = true;
    self->close_up();
  });
  if (!link_) {
    link_closed_ = true;
    return close_up();
  }
  link_->close([self = shared_from_this()] {
    self->link_closed_ = true;
    self->close_up();
  });
}

void JobRendezvous::job_done() {
  job_done_ = true;
  close_up();
}

void JobRendezvous::close_up() {
  if (!close_done_ || !link_closed_ || (server_ && !job_done_)) return;
  close_timer_.cancel();
  asio::post(executor_, [self = shared_from_this()] {
    self->link_.reset();
    self->server_.reset();
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
