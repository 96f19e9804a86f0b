#include "ddrun/etcd/etcd_lease.hpp"

#include <algorithm>
#include <atomic>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ddrun/base/address.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/lease/callback_queue.hpp"
#include "ddrun/lease/fence.hpp"
#include "ddrun/lease/lease.hpp"
#include "ddrun/lease/verdict_record.hpp"
#include "etcd_client.hpp"
#include "etcd_responses.hpp"
#include "held_lease.hpp"

// A job has two keys: `leader`, attached to the leader's etcd lease, and `verdict`. Every machine reads both and
// watches them from that revision. A candidate acquires a lease and creates `leader` in a transaction that requires
// both keys to be absent; the create revision is the term. The attached lease alone identifies a machine's own key, so
// a lost response does no harm: the next read shows the outcome.

namespace ddrun::etcd {

namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using lease::CallbackQueue;
using lease::Callbacks;
using lease::Fence;
using lease::fence_margin;
using lease::FenceClock;
using lease::Lease;
using lease::LeaseOptions;
using lease::percent_encode;
using lease::VerdictRecord;
using nlohmann::json;

constexpr std::uint16_t default_port = 2379;
constexpr std::chrono::hours verdict_ttl{24};
/// A candidate waits a random part of this, times the number of candidates, before it tries.
constexpr std::chrono::microseconds spread_per_candidate{1000};
constexpr Milliseconds min_spread{10}, max_spread{500};
constexpr Milliseconds min_reread_delay{20};
/// Each machine verifies its watch twice in a time to live, all of them together at most 2,000 times a second.
constexpr std::chrono::microseconds check_interval_per_candidate{500};

std::string number_text(std::int64_t number) { return std::to_string(number); }

class EtcdLease : public HeldLease, public std::enable_shared_from_this<EtcdLease> {
 public:
  /// `held`: for another process, which calls keep_alive(); otherwise this object renews by itself.
  EtcdLease(const asio::any_io_executor& executor, const LeaseOptions& options, std::size_t candidates,
            Callbacks callbacks, std::optional<HeldLeaseEvents> held)
      : executor_(executor),
        ttl_(options.ttl),
        spread_(std::clamp<Milliseconds>(std::chrono::duration_cast<Milliseconds>(spread_per_candidate * candidates),
                                         min_spread, max_spread)),
        check_interval_(std::max<Clock::duration>(ttl_ / 2, check_interval_per_candidate * candidates)),
        prefix_(concat("/ddrun/", percent_encode(options.job), "/")),
        callbacks_(executor, std::move(callbacks)),
        held_(std::move(held)),
        renew_timer_(executor),
        try_timer_(executor),
        depose_timer_(executor),
        check_timer_(executor),
        sync_timer_(executor) {}

  Result<void> prepare(const EtcdOptions& etcd) {
    std::vector<EtcdClient::Endpoint> endpoints;
    for (const auto& text : etcd.endpoints) {
      const auto at = split_host_port(text);
      const auto port = at && at->port ? parse_integer(*at->port, 1, 65535) : Result<long long>(default_port);
      const auto is_invalid = [](char c) { return c <= ' ' || c == '/' || c == 127; };
      if (!at || !port || at->host.empty() || std::any_of(at->host.begin(), at->host.end(), is_invalid)) {
        return fail(Errc::invalid_argument, concat("'", plain_line(text), "' is no endpoint of etcd: HOST:PORT"));
      }
      endpoints.push_back({at->host, static_cast<std::uint16_t>(*port)});
    }
    if (endpoints.empty()) return fail(Errc::invalid_argument, "etcd needs one endpoint at least, HOST:PORT");
    if (!etcd.tls && !(etcd.cacert.empty() && etcd.cert.empty() && etcd.key.empty())) {
      return fail(Errc::invalid_argument, "certificates are for etcd with TLS (https), which was not asked for");
    }
    auto streams = etcd.tls ? tls_streams(executor_, etcd) : Result<StreamMaker>(plain_streams(executor_));
    if (!streams) return tl::unexpected(streams.error());
    auto fence = Fence::make(executor_, [this] { on_fence_expired(); });
    if (!fence) return tl::unexpected(fence.error());
    fence_ = std::move(*fence);
    client_ = std::make_shared<EtcdClient>(
        executor_, etcd, std::move(endpoints), std::move(*streams), ttl_ / 6,
        EtcdClient::Events{[this](std::string text) { callbacks_.status(text); },
                           [this](Error error) { on_unusable(std::move(error)); }, [this] { on_member_changed(); }});
    return {};
  }

  void close() {
    closed_ = true;
    callbacks_.close();
    if (client_) client_->close();
    fence_.reset();
    record_.drop();
    for (auto* timer : {&renew_timer_, &try_timer_, &depose_timer_, &check_timer_, &sync_timer_}) timer->cancel();
  }

  // Implementation of Lease.

  void start() override {
    client_->start();
    read();
    await_check();
  }

  void campaign(std::string address) override {
    address_ = std::move(address);
    if (!std::exchange(candidate_, true)) post_later([this] { try_soon(); });
    else post_later([this] { announce(); });
  }

  void keep_alive() override {
    keep_alive_until_ = Clock::now() + ttl_ / 2;
    renew();
    try_soon();
  }

  [[nodiscard]] bool is_leader() const override { return term_ != 0 && fence_->is_held(); }

  /// All machines may depose at the same moment: spread, so that most find it done.
  void depose(std::uint64_t term) override {
    after(depose_timer_, random_part(spread_), [this, term] {
      if (!leader_ || static_cast<std::uint64_t>(leader_->create_revision) != term) return;
      if (leader_->lease == 0 || leader_->lease == lease_) return;
      revoke_other(leader_->lease);
    });
  }

  void resign(Done done) override {
    candidate_ = false;
    try_timer_.cancel();
    const auto id = release_lease();
    // An earlier lease may still be being revoked.
    if (id == 0 && revoking_ == 0) return callbacks_.complete(std::move(done), {});
    pending_resigns_.push_back(std::move(done));
    if (id == 0) return;
    record_.fail("gave the lease back before the verdict was recorded");
    revoke(id);
  }

  void record_verdict(std::string text, Done done) override {
    if (!record_.begin(std::move(text), std::move(done), verdict_, is_leader())) return;
    const std::uint64_t term = term_;
    client_->post(
        "/v3/lease/grant", json{{"TTL", number_text(std::chrono::seconds(verdict_ttl).count())}}.dump(),
        lease_deadline(),
        [this, term](const std::string& body) {
          const auto granted = parse_grant(body);
          if (!granted) return false;
          if (term_ == term && record_.is_pending()) write_verdict(granted->id);
          else revoke_other(granted->id);
          return true;
        },
        [this](const Error& error) { record_.fail(error.message); });
  }

 private:
  [[nodiscard]] std::string leader_key() const { return prefix_ + "leader"; }
  [[nodiscard]] std::string verdict_key() const { return prefix_ + "verdict"; }
  [[nodiscard]] Deadline lease_deadline() const { return Clock::now() + fence_->remaining(); }

  /// Defers work of a call, so that no callback comes from within it.
  template <class Action>
  void post_later(Action what) {
    asio::post(executor_, [weak = weak_from_this(), what] {
      const auto self = weak.lock();
      if (self && !self->closed_) what();
    });
  }

  template <class Action>
  void after(asio::steady_timer& timer, Clock::duration time, Action what) {
    timer.expires_after(time);
    timer.async_wait([weak = weak_from_this(), &timer, what](const error_code& ec) {
      const auto self = weak.lock();
      if (!ec && self && !self->closed_ && Clock::now() >= timer.expiry()) what();
    });
  }

  Clock::duration random_part(Clock::duration max) {
    return Clock::duration(std::uniform_int_distribution<Clock::rep>(0, max.count())(random_));
  }

  [[nodiscard]] json key_range() const {
    return {{"key", to_base64(prefix_)}, {"range_end", to_base64(prefix_.substr(0, prefix_.size() - 1) + "0")}};
  }

  // ---- reading and watching ----

  /// Reads both keys until it succeeds, then watches from that revision.
  void read() {
    if (std::exchange(reading_, true)) return;
    synced_ = false;
    client_->post(
        "/v3/kv/range", key_range().dump(), Deadline::max(),
        [this](const std::string& body) {
          const auto snapshot = parse_range(body);
          if (!snapshot) return false;
          reading_ = false;
          synced_ = true;
          if (snapshot->revision < revision_) {
            callbacks_.status(concat("etcd has forgotten what it knew (it is at revision ", snapshot->revision,
                                     " after ", revision_, "): was it set up anew?"));
            revision_ = 0;
          }
          watch(snapshot->revision + 1);
          apply(*snapshot);
          if (held_) callbacks_.post_other(held_->on_read);
          return true;
        },
        [this](const Error& error) {
          reading_ = false;
          callbacks_.status(error.message);
          schedule_read();
        });
  }

  void schedule_read() {
    reread_delay_ = std::min<Clock::duration>(reread_delay_ * 2, ttl_ / 4);
    after(sync_timer_, reread_delay_ / 2 + random_part(reread_delay_ / 2), [this] { read(); });
  }

  void watch(std::int64_t from) {
    json create = key_range();
    create["start_revision"] = number_text(from);
    client_->watch(
        json{{"create_request", create}}.dump(),
        [this](std::string_view line) {
          const auto update = parse_watch(line);
          // The revision may be compacted: read the current state.
          if (!update || update->canceled) {
            client_->close_watch();
            return schedule_read();
          }
          reread_delay_ = min_reread_delay;
          for (const auto& event : update->events) {
            if (!closed_) apply(event);
          }
        },
        [this](const std::string&) { schedule_read(); });
  }

  void on_member_changed() {
    if (!reading_) schedule_read();
  }

  /// A watch is silent while nothing changes; this detects a watch through a member that has stopped or is partitioned.
  void await_check() {
    after(check_timer_, check_interval_ / 2 + random_part(check_interval_), [this] {
      await_check();
      if (reading_ || checking_) return;
      checking_ = true;
      client_->post(
          "/v3/kv/range", key_range().dump(), Clock::now() + ttl_,
          [this](const std::string& body) {
            const auto snapshot = parse_range(body);
            if (!snapshot) return false;
            checking_ = false;
            if (snapshot->revision < revision_) read();
            else apply(*snapshot);
            return true;
          },
          [this](const Error&) { checking_ = false; });
    });
  }

  void apply(const Snapshot& snapshot) {
    if (snapshot.revision < revision_) return;
    revision_ = snapshot.revision;
    std::optional<KeyValue> leader, verdict;
    for (const auto& kv : snapshot.kvs) {
      if (kv.key == leader_key()) leader = kv;
      if (kv.key == verdict_key()) verdict = kv;
    }
    apply_verdict(verdict ? std::optional(verdict->value) : std::nullopt);
    apply_leader(std::move(leader));
  }

  void apply(const WatchResponse::Event& event) {
    if (event.kv.mod_revision <= revision_) return;
    revision_ = event.kv.mod_revision;
    if (event.kv.key == verdict_key()) {
      apply_verdict(event.deleted ? std::nullopt : std::optional(event.kv.value));
      if (event.deleted) try_soon();
    }
    if (event.kv.key == leader_key()) apply_leader(event.deleted ? std::nullopt : std::optional(event.kv));
  }

  void apply_verdict(std::optional<std::string> verdict) {
    if (verdict == verdict_) return;
    verdict_ = std::move(verdict);
    if (!verdict_) return;
    callbacks_.verdict(*verdict_);
    record_.on_existing(*verdict_);
  }

  void apply_leader(std::optional<KeyValue> leader) {
    leader_ = std::move(leader);
    if (!leader_) {
      if (term_ != 0) lost("its key in etcd is gone");
      callbacks_.no_leader();
      return try_soon();
    }
    const auto term = static_cast<std::uint64_t>(std::max<std::int64_t>(leader_->create_revision, 0));
    if (leader_->lease != 0 && leader_->lease == lease_) return on_own_key(term);
    if (term_ != 0) lost("etcd has given it to another");
    if (leader_->lease != 0 && leader_->lease == former_lease_) {
      // Own former lease, expired or given up: others need not wait for its expiry.
      if (revoking_ == 0) revoke(former_lease_);
      return callbacks_.no_leader();
    }
    if (term < highest_term_) {
      callbacks_.status(concat("a leader of term ", term, " is not obeyed after one of term ", highest_term_));
      return callbacks_.no_leader();
    }
    highest_term_ = term;
    callbacks_.leader({term, leader_->value, false});
  }

  // ---- leading ----

  void on_own_key(std::uint64_t term) {
    if (term_ == 0) {
      if (!fence_->is_held() || !candidate_) return revoke(release_lease());
      if (term <= highest_term_) {
        callbacks_.status(concat("term ", term, " in etcd is not above ", highest_term_, ": was it set up anew?"));
        return revoke(release_lease());
      }
      trying_ = false;
      term_ = highest_term_ = term;
      renewed();
    }
    callbacks_.leader({term_, leader_->value, true});
    announce();
  }

  void announce() {
    if (!is_leader() || announcing_ || !leader_ || leader_->value == address_) return;
    announcing_ = true;
    const json txn{{"compare", json::array({compare_create_revision(leader_key(), static_cast<std::int64_t>(term_))})},
                   {"success", json::array({json{{"requestPut", put_leader()}}})}};
    client_->post(
        "/v3/kv/txn", txn.dump(), lease_deadline(),
        [this, address = address_](const std::string& body) {
          const auto answer = parse_txn(body);
          if (!answer) return false;
          announcing_ = false;
          if (answer->succeeded && term_ != 0 && leader_) {
            leader_->value = address;
            callbacks_.leader({term_, address, true});
            announce();
          }
          return true;
        },
        [this](const Error&) { announcing_ = false; });
  }

  /// By the request sent at `last_sent_`.
  void renewed() {
    if (held_) {
      if (term_ != 0)
        callbacks_.post_other(
            [on_held = held_->on_held, term = term_.load(), sent = last_sent_] { on_held(term, sent); });
      return;
    }
    const auto due = std::chrono::duration_cast<Clock::duration>(last_sent_ + ttl_ / 5 - FenceClock::now());
    after(renew_timer_, std::max(due, Clock::duration::zero()), [this] { renew(); });
  }

  void renew() {
    if (lease_ == 0 || renewing_ == lease_) return;
    const auto id = renewing_ = lease_;
    client_->post(
        "/v3/lease/keepalive", json{{"ID", number_text(id)}}.dump(), lease_deadline(),
        [this, id](const std::string& body) {
          const auto left = parse_keepalive(body);
          if (!left) return false;
          if (id != lease_) return true;
          renewing_ = 0;
          if (*left == 0) {
            lost("etcd has let the lease run out");
            return true;
          }
          last_sent_ = client_->sent();
          fence_->renewed(last_sent_, std::min<Milliseconds>(ttl_, std::chrono::seconds(*left)));
          renewed();
          return true;
        },
        [this, id](const Error& error) {
          if (id != lease_) return;
          renewing_ = 0;
          if (error.code != Errc::timeout) lost(error.message);
        });
  }

  /// The local clock decides, whatever etcd's state is.
  void on_fence_expired() {
    if (closed_ || lease_ == 0 || fence_->is_held()) return;
    if (term_ == 0) {
      revoke(release_lease());
      return try_soon();
    }
    lost(concat("it could not be renewed within ", format_duration(ttl_ - fence_margin(ttl_)),
                client_->last_error().empty() ? "" : concat(" (", client_->last_error(), ")")));
  }

  void lost(const std::string& why) {
    record_.fail(concat("the lease is lost: ", why));
    const auto id = release_lease();
    callbacks_.lost(concat("the lease is lost: ", why));
    revoke(id);
    try_soon();
  }

  /// Drops the lease; returns its id for revoke(), 0: none.
  std::int64_t release_lease() {
    renew_timer_.cancel();
    fence_->drop();
    term_ = 0;
    trying_ = false;
    ++attempt_;  // invalidates requests in flight
    announcing_ = false;
    callbacks_.clear_self();
    if (lease_ == 0) return 0;
    former_lease_ = std::exchange(lease_, 0);
    return former_lease_;
  }

  /// Lets others lead before the lease expires.
  void revoke(std::int64_t id) {
    if (id == 0) return;
    ++revoking_;
    client_->post(
        "/v3/lease/revoke", json{{"ID", number_text(id)}}.dump(), Clock::now() + ttl_,
        [this](const std::string& body) {
          const bool is_done = is_ok_response(body);
          if (is_done) revoked({});
          return is_done;
        },
        [this](const Error& error) {
          if (error.code == Errc::not_found) return revoked({});  // gone in either case
          revoked(fail(Errc::unavailable, concat("the lease was not given back: ", error.message)));
        });
  }

  void revoked(const Result<void>& result) {
    if (--revoking_ > 0) return;
    for (auto& done : std::exchange(pending_resigns_, {})) callbacks_.complete(std::move(done), result);
  }

  // ---- campaigning ----

  [[nodiscard]] bool may_try() const {
    return candidate_ && lease_ == 0 && synced_ && !leader_ && !verdict_ &&
           (!held_ || Clock::now() < keep_alive_until_);
  }

  void try_soon() {
    if (trying_ || !may_try()) return;
    trying_ = true;
    after(try_timer_, random_part(spread_), [this] {
      trying_ = false;
      if (may_try()) try_now();
    });
  }

  void try_later() {
    trying_ = true;
    after(try_timer_, ttl_ / 8 + random_part(ttl_ / 8), [this] {
      trying_ = false;
      try_soon();
    });
  }

  void try_now() {
    trying_ = true;
    const auto attempt = attempt_;
    client_->post(
        "/v3/lease/grant",
        json{{"TTL", number_text(std::chrono::duration_cast<std::chrono::seconds>(ttl_).count())}}.dump(),
        Clock::now() + ttl_,
        [this, attempt](const std::string& body) {
          const auto granted = parse_grant(body);
          if (!granted) return false;
          if (attempt != attempt_) {
            revoke_other(granted->id);
            return true;
          }
          lease_ = granted->id;
          last_sent_ = client_->sent();
          const Milliseconds ttl = std::chrono::seconds(granted->ttl);
          fence_->renewed(last_sent_, std::min(ttl_, ttl));
          if (ttl > ttl_ && !std::exchange(long_ttl_reported_, true)) {
            callbacks_.status(concat("etcd lets no lease run out before ", format_duration(ttl), ", not ",
                                     format_duration(ttl_), ": another leader takes over that much later"));
          }
          if (!candidate_ || leader_ || verdict_) revoke(release_lease());
          else create_leader_key();
          return true;
        },
        [this, attempt](const Error& error) {
          if (attempt != attempt_) return;
          if (error.code != Errc::timeout) callbacks_.status(error.message);
          try_later();
        });
  }

  static json compare_create_revision(const std::string& key, std::int64_t revision) {
    return {
        {"key", to_base64(key)}, {"target", "CREATE"}, {"result", "EQUAL"}, {"create_revision", number_text(revision)}};
  }
  [[nodiscard]] json put_leader() const {
    return {{"key", to_base64(leader_key())}, {"value", to_base64(address_)}, {"lease", number_text(lease_)}};
  }

  void create_leader_key() {
    const auto id = lease_;
    const json txn{
        {"compare", json::array({compare_create_revision(leader_key(), 0), compare_create_revision(verdict_key(), 0)})},
        {"success", json::array({json{{"requestPut", put_leader()}}})},
        {"failure", json::array({json{{"requestRange", key_range()}}})}};
    client_->post(
        "/v3/kv/txn", txn.dump(), lease_deadline(),
        [this, id, address = address_](const std::string& body) {
          auto answer = parse_txn(body);
          if (!answer) return false;
          if (id != lease_) return true;
          trying_ = false;
          if (answer->succeeded) {
            const auto revision = answer->found.revision;
            answer->found.kvs = {{leader_key(), address, revision, revision, id}};
          } else if (std::none_of(answer->found.kvs.begin(), answer->found.kvs.end(),
                                  [&](const KeyValue& kv) { return kv.lease == id; })) {
            // Another candidate was first. The lease expires by itself.
            (void)release_lease();
          }
          apply(answer->found);
          try_soon();
          return true;
        },
        [this, id](const Error& error) {
          if (id != lease_) return;
          trying_ = false;
          if (error.code != Errc::timeout && error.code != Errc::not_found) callbacks_.status(error.message);
          revoke(release_lease());
          try_later();
        });
  }

  // ---- the verdict ----

  void write_verdict(std::int64_t lease) {
    const json put{
        {"key", to_base64(verdict_key())}, {"value", to_base64(record_.text())}, {"lease", number_text(lease)}};
    const json txn{{"compare", json::array({compare_create_revision(leader_key(), static_cast<std::int64_t>(term_)),
                                            compare_create_revision(verdict_key(), 0)})},
                   {"success", json::array({json{{"requestPut", put}}})},
                   {"failure", json::array({json{{"requestRange", key_range()}}})}};
    client_->post(
        "/v3/kv/txn", txn.dump(), lease_deadline(),
        [this, lease](const std::string& body) {
          const auto answer = parse_txn(body);
          if (!answer) return false;
          bool recorded = answer->succeeded;
          std::optional<std::string> verdict;
          for (const auto& kv : answer->found.kvs) {
            if (kv.key != verdict_key()) continue;
            // An earlier attempt of the same request may have succeeded.
            recorded = kv.lease == lease;
            verdict = kv.value;
          }
          if (!recorded) revoke_other(lease);
          if (!record_.is_pending()) return true;
          if (recorded) verdict = record_.text();
          // An earlier record, with a lost response, has the same text and another lease.
          if (verdict) apply_verdict(std::move(verdict));
          record_.fail("etcd knows another leader, or none", Errc::cancelled);
          return true;
        },
        [this](const Error& error) { record_.fail(error.message); });
  }

  void revoke_other(std::int64_t id) {
    client_->post("/v3/lease/revoke", json{{"ID", number_text(id)}}.dump(), Clock::now() + ttl_, is_ok_response,
                  [](const Error&) {});
  }

  void on_unusable(Error error) {
    (void)release_lease();
    candidate_ = false;
    callbacks_.unusable(error);
  }

  asio::any_io_executor executor_;
  Milliseconds ttl_, spread_;
  Clock::duration check_interval_;
  std::string prefix_;
  CallbackQueue callbacks_;
  std::optional<HeldLeaseEvents> held_;
  std::shared_ptr<EtcdClient> client_;
  std::unique_ptr<Fence> fence_;
  asio::steady_timer renew_timer_, try_timer_, depose_timer_, check_timer_, sync_timer_;
  std::minstd_rand random_{std::random_device()()};

  // State of etcd as of `revision_`.
  std::int64_t revision_ = 0;
  std::optional<KeyValue> leader_;
  std::optional<std::string> verdict_;
  std::uint64_t highest_term_ = 0;
  bool reading_ = false, synced_ = false, checking_ = false;
  Clock::duration reread_delay_ = min_reread_delay;

  // State of this machine.
  std::string address_;
  bool candidate_ = false;
  bool trying_ = false;
  std::uint64_t attempt_ = 0;
  bool announcing_ = false;
  int revoking_ = 0;                   ///< number of revocations in flight
  std::vector<Done> pending_resigns_;  ///< completed when there are none
  bool long_ttl_reported_ = false;
  bool closed_ = false;
  std::int64_t lease_ = 0;     ///< held or being acquired; 0: none
  std::int64_t renewing_ = 0;  ///< lease being renewed
  Deadline keep_alive_until_{};
  std::int64_t former_lease_ = 0;        ///< the previous lease, given up
  std::atomic<std::uint64_t> term_ = 0;  ///< of this machine's leadership; 0: not leading
  FenceClock::time_point last_sent_{};
  VerdictRecord record_{callbacks_};
};

Result<std::shared_ptr<HeldLease>> make(const asio::any_io_executor& executor, const LeaseOptions& options,
                                        const EtcdOptions& etcd, Callbacks callbacks,
                                        std::optional<HeldLeaseEvents> held) {
  if (const auto right = lease::check_options(options); !right) return tl::unexpected(right.error());
  auto made = std::make_shared<EtcdLease>(executor, options, etcd.candidates, std::move(callbacks), std::move(held));
  if (const auto ready = made->prepare(etcd); !ready) return tl::unexpected(ready.error());
  // Requests in flight keep it alive; after the caller drops it no callback follows.
  return std::shared_ptr<HeldLease>(made.get(), [made](HeldLease*) { made->close(); });
}

}  // namespace

Result<std::shared_ptr<lease::Lease>> make_etcd_lease(const asio::any_io_executor& executor,
                                                      const lease::LeaseOptions& options, const EtcdOptions& etcd,
                                                      lease::Callbacks callbacks) {
  auto made = make(executor, options, etcd, std::move(callbacks), std::nullopt);
  if (!made) return tl::unexpected(made.error());
  return std::shared_ptr<Lease>(std::move(*made));
}

Result<std::shared_ptr<HeldLease>> make_held_lease(const asio::any_io_executor& executor,
                                                   const lease::LeaseOptions& options, const EtcdOptions& etcd,
                                                   lease::Callbacks callbacks, HeldLeaseEvents events) {
  return make(executor, options, etcd, std::move(callbacks), std::move(events));
}

}  // namespace ddrun::etcd
