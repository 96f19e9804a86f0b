#include "dialer.hpp"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "ddrun/base/text.hpp"
#include "ddrun/rendezvous/secret.hpp"
#include "heartbeat.hpp"

namespace ddrun::rendezvous {

namespace {

/// Short, as agents are often started some milliseconds before the coordinator listens.
constexpr Milliseconds first_pause{2};
constexpr Milliseconds max_pause{1000};
constexpr Milliseconds max_resume_pause{200};
/// Connections that are refused for this long, without any other reply, mean that the coordinator's process has ended:
/// refusals by a device on the path are shorter.
constexpr Milliseconds refused_timeout{500};
/// Covers the retransmission of a lost SYN after 1 s and after 2 s more.
constexpr std::chrono::seconds connect_timeout{5};
constexpr std::chrono::seconds handshake_timeout{5};
/// For the reply to JOIN or RESUME.
constexpr std::chrono::seconds join_reply_timeout{10};
constexpr std::chrono::seconds lookup_timeout{10};
/// PONGs of which the coordinator may still say that they have come.
constexpr std::size_t max_unconfirmed = 16;

DialStep loss(Errc code, std::string why, bool unreachable = false) {
  return {LinkLoss{Error{code, std::move(why)}, unreachable}};
}

}  // namespace

std::optional<Grace> ordered_stop(const FromCoordinator& message) {
  const auto* stop = std::get_if<Stop>(&message);
  if (stop != nullptr && stop->signal == SIGKILL) return Grace::none;
  const auto* refused = std::get_if<Refused>(&message);
  if (refused == nullptr) return std::nullopt;
  return refused->kind == RefusalKind::lost ? Grace::lost_sight : Grace::whole;
}

Dialer::Dialer(const DialerOptions& options)
    : options_(options), pause_(first_pause), by_(options.connect_by), state_(options.on_step) {
  for (const auto& endpoint : options_.coordinators) candidates_.push_back({endpoint, {}, {}, false});
}

std::optional<DialStep> Dialer::enter(Step step) {
  if (state_.enter(step)) return std::nullopt;
  return unusable(concat("this ddrun ", state_.take_wrong().value_or("")));
}

// ---- search, until there is a connection

DialStep Dialer::begin(Clock::time_point now) {
  begun_ = 0;
  targets_.clear();
  return now >= by_ ? give_up() : next_target(now);
}

DialStep Dialer::next_target(Clock::time_point now) {
  while (targets_.empty() || candidate().permanent_error) {
    if (begun_ == candidates_.size()) {
      const bool not_listening = is_not_listening(now);
      if (usable_candidates() == 0 || (options_.was_reachable && not_listening)) return give_up();
      auto step = pause(max_pause, now);
      step.not_listening = not_listening;
      return step;
    }
    targets_.clear();
    ++begun_;
    if (candidate().permanent_error) continue;
    const auto& [host, port] = candidate().endpoint;
    if (host == "localhost") targets_ = {{"::1", port}, {"127.0.0.1", port}};
    else if (IpAddress::parse(host)) targets_ = {{host, port}};
    else return {dial::LookUp{host, after(lookup_timeout, now) - now}};
  }
  if (now >= by_) return give_up();
  target_ = targets_.back();
  targets_.pop_back();
  return connect(Step::connect, now);
}

DialStep Dialer::resolved(const Result<std::vector<std::string>>& addresses, Clock::time_point now) {
  if (!addresses) return failed(addresses.error().message, now);
  for (auto text = addresses->rbegin(); text != addresses->rend(); ++text) {
    targets_.push_back({*text, candidate().endpoint.port});
  }
  return next_target(now);
}

DialStep Dialer::connect(Step why, Clock::time_point now) {
  const std::string& from = options_.local_address;
  const auto local = IpAddress::parse(from);
  if (!from.empty() && (!local || local->is_v4() != address().is_v4())) {
    return failed(concat(target_text(), " cannot be reached from '", from, "', which is no address of the same kind"),
                  now);
  }
  return enter(why, {dial::Connect{target_, from}, after(connect_timeout, now)});
}

DialStep Dialer::pause(Milliseconds longest, Clock::time_point now) {
  const auto due = after(pause_, now);
  pause_ = std::min(2 * pause_, longest);
  return enter(Step::pause, {dial::Pause{}, due});
}

DialStep Dialer::connected(Clock::time_point now) {
  refused_since_.reset();
  return enter(Step::greet, {dial::Greet{}, after(handshake_timeout, now)});
}

DialStep Dialer::refused(Clock::time_point now) {
  if (!refused_since_) refused_since_ = now;
  return failed(concat("no process listens on ", target_text()), now);
}

DialStep Dialer::unreachable(const std::string& how, Clock::time_point now) {
  refused_since_.reset();
  return failed(concat(target_text(), " cannot be reached: ", how), now);
}

DialStep Dialer::timed_out(Clock::time_point now) {
  switch (state_) {
    case DialerState::connecting:
      refused_since_.reset();
      return failed(concat(target_text(), " does not answer; is there a firewall in between?"), now);
    case DialerState::greeting:
    case DialerState::proving:
      return failed(concat("what listens on ", target_text(), " does not answer ddrun's greeting"), now);
    case DialerState::joining:
      return failed(concat("the coordinator on ", target_text(), " does not say whether this ddrun may take part"),
                    now);
    case DialerState::joined: return watch_silence(now);
    case DialerState::searching: break;  // the pause is over
  }
  return break_reason_ ? connect(Step::connect, now) : begin(now);
}

DialStep Dialer::failed(const std::string& why, Clock::time_point now, std::optional<Errc> permanent_error) {
  if (break_reason_) {
    const bool is_over = permanent_error || is_not_listening(now);
    if (!is_over && now < by_) return pause(max_resume_pause, now);
    return loss(Errc::connection_lost,
                concat("the connection to the coordinator on ", coordinator_host_, " (", target_text(),
                       ") broke: ", *break_reason_, "; it could not be made again: ", why),
                !is_over);
  }
  candidate().last_error = why;
  candidate().was_reached = state_ == DialerState::joining;
  candidate().permanent_error = permanent_error;
  auto step = next_target(now);
  step.retries.insert(step.retries.begin(), why);
  return step;
}

DialStep Dialer::give_up() const {
  if (candidates_.empty()) return loss(Errc::invalid_argument, "there is no address of a coordinator");
  std::string errors;
  Errc code = Errc::timeout;
  for (const auto& one : candidates_) {
    if (one.permanent_error) code = *one.permanent_error;
    if (!one.last_error.empty()) errors += (errors.empty() ? "" : "; ") + one.last_error;
  }
  if (errors.empty()) errors = "the time was over before it could be tried";
  if (usable_candidates() == 0) return loss(code, errors);
  const bool was_reached =
      std::any_of(candidates_.begin(), candidates_.end(), [](const auto& one) { return one.was_reached; });
  if (was_reached) return loss(Errc::timeout, concat("the coordinator did not admit this machine in time: ", errors));
  return loss(Errc::timeout, concat("the coordinator could not be reached in time: ", errors,
                                    ". Is the ddrun there running, and is its port open for this machine?"));
}

bool Dialer::is_not_listening(Clock::time_point now) const {
  return refused_since_ && now - *refused_since_ >= refused_timeout;
}

std::ptrdiff_t Dialer::usable_candidates() const {
  return std::count_if(candidates_.begin(), candidates_.end(), [](const auto& one) { return !one.permanent_error; });
}

/// "node0:29400 (10.0.0.7)", or only the first part if both are equal.
std::string Dialer::target_text() const {
  const auto& [host, port] = candidates_[begun_ - 1].endpoint;
  const auto named = host_port_text(host, port);  // as configured
  const auto number = address().text();
  return host == number ? named : concat(named, " (", number, ")");
}

// ---- the connection

std::optional<DialStep> Dialer::shook_hands(HandshakeState state, std::uint16_t peer_version, Clock::time_point now) {
  const auto coordinator_failed = [&](std::optional<Errc> permanent_error, const auto&... what) {
    return failed(concat("the coordinator on ", target_text(), what...), now, permanent_error);
  };
  switch (state) {
    case HandshakeState::in_progress: return peer_version == protocol_version ? enter(Step::prove) : std::nullopt;
    case HandshakeState::done:
      greeted_at_ = now;
      return enter(Step::ask, {break_reason_ ? FromAgent(Resume{session_, 0}) : FromAgent(options_.join),
                               after(join_reply_timeout, now)});
    case HandshakeState::foreign_protocol:
      return failed(concat("what listens on ", target_text(), " is not ddrun: give the coordinator's port"), now,
                    Errc::protocol);
    case HandshakeState::other_version:
      return coordinator_failed(Errc::protocol, " speaks version ", peer_version,
                                " of ddrun's protocol, and this ddrun version ", protocol_version,
                                ": start the same ddrun on all machines");
    case HandshakeState::needs_secret:
      return coordinator_failed(Errc::invalid_argument,
                                " asks for a secret and this ddrun has none: give it the job's with --secret-file or "
                                "DDRUN_SECRET, without --insecure");
    case HandshakeState::needs_no_secret:
      return coordinator_failed(Errc::invalid_argument,
                                " was started with --insecure and this ddrun has a secret: start all of them with "
                                "--insecure, or none");
    case HandshakeState::busy: return coordinator_failed(std::nullopt, " has too many connections to greet at once");
    case HandshakeState::rejected:
      return coordinator_failed(
          Errc::invalid_argument, " turned this ddrun away because it has another secret: ",
          other_secret_advice(options_.secret_file, options_.join.host, candidate().endpoint.host, ""));
    case HandshakeState::wrong_secret: break;
  }
  return coordinator_failed(Errc::invalid_argument,
                            " does not know this job's secret: give all agents the same one (--secret-file or "
                            "DDRUN_SECRET), or check who listens there");
}

/// JOIN and RESUME have their answers, once.
bool Dialer::may_come(const FromCoordinator& message) const {
  if (is_joined()) return !is_any<Welcome, Resumed>(message);
  if (break_reason_) return is_any<Resumed, Refused>(message);
  return is_any<Welcome, Refused, VerdictMessage>(message);
}

std::optional<DialStep> Dialer::received(const FromCoordinator& message, Clock::time_point now) {
  if (!may_come(message)) return unusable("a message came out of its order");
  if (is_joined()) {
    if (!std::holds_alternative<Start>(message)) return std::nullopt;
    has_workers_ = true;
    return watch_silence(now);
  }
  if (const auto* welcome = std::get_if<Welcome>(&message)) {
    // A coordinator of a lower term has not noticed yet that another one leads.
    if (welcome->term < options_.join.claim.term) {
      return failed(concat("the coordinator on ", welcome->coordinator_host, " (", target_text(), ") leads no more"),
                    now);
    }
    coordinator_host_ = welcome->coordinator_host;
    session_ = welcome->session;
    heartbeat_ = Milliseconds(std::clamp<std::uint32_t>(welcome->heartbeat_ms, 1, 3'600'000));
    heartbeat_timeout_ = heartbeat_ * std::int64_t{std::clamp<std::uint32_t>(welcome->heartbeat_misses, 1, 1'000'000)};
  } else if (const auto* refused = std::get_if<Refused>(&message); refused != nullptr && !break_reason_) {
    if (auto step = try_elsewhere(*refused, now)) return step;
  }
  if (auto wrong = enter(Step::open)) return wrong;
  confirmed_at_ = greeted_at_;
  resumed_at_ = {};
  is_new_ = std::holds_alternative<Welcome>(message);
  unconfirmed_.clear();
  silent_at_ = now;  // no timer is late
  break_reason_.reset();
  by_ = Deadline::max();
  auto step = watch_silence(now);
  step.next = dial::Open{};
  return step;
}

/// Whether to try further candidates: this one serves another job, a coordinator has stepped down, or the node rank is
/// held by an agent whose loss is not noticed yet.
std::optional<DialStep> Dialer::try_elsewhere(const Refused& refused, Clock::time_point now) {
  const auto kind = refused.kind;
  if (kind == RefusalKind::moved) return failed(refused.why, now);
  if (kind == RefusalKind::other_job && usable_candidates() > 1)
    return failed(refused.why, now, Errc::invalid_argument);
  if (kind != RefusalKind::taken) return std::nullopt;
  if (!taken_since_) taken_since_ = now;
  if (now - *taken_since_ >= options_.conflict_timeout) {
    if (!std::exchange(options_.join.rank_is_wish, false)) return std::nullopt;
    options_.join.node_rank = -1;
    taken_since_ = now;
  }
  candidate().last_error = refused.why;
  candidate().was_reached = true;
  return next_target(now);
}

DialStep Dialer::unusable(const std::string& why) const {
  return loss(Errc::protocol, concat("the connection to the coordinator on ", target_text(), " cannot be used: ", why));
}

DialStep Dialer::hung_up(const std::string& how, bool in_order, Clock::time_point now) {
  // A coordinator that has replied to the hello closes slow connections by itself.
  if (state_ == DialerState::greeting) return failed(concat(target_text(), " hung up before it answered: ", how), now);
  if (state_ != DialerState::joined)
    return failed(concat("the coordinator on ", target_text(), " hung up before it let us in: ", how), now);
  if (in_order || session_.empty()) {
    const auto why = concat("the connection to the coordinator", coordinator_host_.empty() ? "" : " on ",
                            coordinator_host_, " (", target_text(), ") broke: ", how);
    return {LinkLoss{Error{Errc::connection_lost, why}, false, in_order}};
  }
  // The coordinator keeps the member for the heartbeat timeout.
  break_reason_ = how;
  refused_since_.reset();
  pause_ = first_pause;
  by_ = silent_since() + heartbeat_timeout_;
  return connect(Step::resume, now);
}

std::optional<DialStep> Dialer::pinged(const Ping& ping, Clock::time_point now) {
  const auto confirmed = std::find_if(unconfirmed_.begin(), unconfirmed_.end(),
                                      [&](const auto& pong) { return pong.first == ping.heard; });
  if (confirmed != unconfirmed_.end()) {
    confirmed_at_ = std::max(confirmed_at_, confirmed->second);
    unconfirmed_.erase(unconfirmed_.begin(), confirmed + 1);
    is_new_ = false;
  }
  unconfirmed_.emplace_back(ping.number, now);
  if (unconfirmed_.size() > max_unconfirmed) unconfirmed_.pop_front();
  return has_workers_ && is_new_ ? std::optional(watch_silence(now)) : std::nullopt;
}

/// The next round waits for workers of this agent from the coordinator's last sign of life of it on. So while there are
/// some, silence counts from what the coordinator is known to have heard, and the interval until it can say so; from
/// JOIN on, and so at the coordinator, one interval more, as the first PING takes one.
Clock::time_point Dialer::silent_since() const {
  if (!has_workers_) return last_heard_;
  return resumed_at_ > confirmed_at_ ? resumed_at_ + heartbeat_ : unheard_since();
}

Clock::time_point Dialer::unheard_since() const {
  if (!is_new_) return confirmed_at_ + heartbeat_;
  const auto joined = confirmed_at_ + 2 * heartbeat_;
  return unconfirmed_.empty() ? joined : std::min(joined, unconfirmed_.front().second + heartbeat_);
}

Clock::duration Dialer::silence_limit() const { return heartbeat_timeout_ + Heartbeat::margin(heartbeat_); }

std::optional<Clock::time_point> Dialer::loses_sight_at() const {
  if (!has_workers_ || options_.is_local || heartbeat_timeout_ == Clock::duration::zero()) return std::nullopt;
  return unheard_since() + silence_limit();
}

DialStep Dialer::watch_silence(Clock::time_point now) {
  if (options_.is_local || heartbeat_timeout_ == Clock::duration::zero()) return {dial::Watch{}};
  const auto limit = silence_limit();
  // A late timer means that this process was suspended, so that messages may be unread.
  if (now - silent_at_ > heartbeat_) {
    last_heard_ = std::max(last_heard_, now - limit + heartbeat_);
    resumed_at_ = now - limit + heartbeat_;
  }
  silent_at_ = silent_since() + limit;
  if (now < silent_at_) return {dial::Watch{}, silent_at_};
  const std::string coordinator = concat("the coordinator on ", coordinator_host_, " (", target_text(), ")");
  const std::string bound = format_duration(heartbeat_timeout_);
  const bool mute = now < last_heard_ + heartbeat_timeout_;
  return loss(Errc::connection_lost,
              mute ? concat(coordinator, " does not confirm that it has heard this machine within ", bound)
                   : concat("nothing was heard from ", coordinator, " for ", bound),
              true);
}

}  // namespace ddrun::rendezvous
