#include "etcd_client.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "ddrun/base/address.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/helper/host_lookup.hpp"

namespace ddrun::etcd {

namespace {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;

constexpr std::chrono::seconds resolve_timeout{5};
constexpr std::chrono::seconds resolve_interval{5};
constexpr Milliseconds min_back_off{50}, max_back_off{500};
constexpr int max_authentications = 3;  // per request

// gRPC's status codes.
constexpr int invalid_argument = 3, deadline_exceeded = 4, not_found = 5, permission_denied = 7, resource_exhausted = 8,
              failed_precondition = 9, unavailable = 14, unauthenticated = 16;

std::optional<tcp::endpoint> endpoint_of(const std::string& address, std::uint16_t port) {
  boost::system::error_code ec;
  const auto ip = asio::ip::make_address(address, ec);
  return ec ? std::nullopt : std::optional(tcp::endpoint(ip, port));
}

}  // namespace

std::string EtcdClient::Member::name() const { return host_port_text(at.host, at.port); }

EtcdClient::EtcdClient(const asio::any_io_executor& executor, EtcdOptions options, std::vector<Endpoint> endpoints,
                       StreamMaker streams, Milliseconds timeout, Events events)
    : options_(std::move(options)),
      streams_(std::move(streams)),
      timeout_(timeout),
      events_(std::move(events)),
      executor_(executor),
      timer_(executor),
      watch_timer_(executor) {
  for (auto& endpoint : endpoints) members_.push_back({std::move(endpoint), {}, {}, {}, false});
  // Spreads clients over the members.
  current_ = std::random_device()();
}

void EtcdClient::start() {
  resolved_at_ = Clock::now();
  for (std::size_t i = 0; i < members_.size(); ++i) resolve(i);
  next();
}

void EtcdClient::close() {
  closed_ = true;
  events_ = {};
  requests_.clear();
  connection_.reset();
  close_watch();
  timer_.cancel();
  for (auto& member : members_) member.lookup.reset();
}

void EtcdClient::resolve(std::size_t index) {
  Member& member = members_[index];
  const std::string host = member.at.host == "localhost" ? "127.0.0.1" : member.at.host;
  if (const auto address = endpoint_of(host, member.at.port)) {
    member.addresses = {*address};
    return set_targets();
  }
  if (member.lookup) return;
  member.lookup = helper::look_up_host(
      executor_, host, resolve_timeout, [this, index](const Result<std::vector<std::string>>& found) {
        Member& member = members_[index];
        const auto running = std::exchange(member.lookup, nullptr);
        if (closed_) return;
        if (found) {
          decltype(member.addresses) addresses;
          for (const auto& text : *found) {
            if (const auto address = endpoint_of(text, member.at.port)) addresses.push_back(*address);
          }
          // Otherwise the earlier addresses are kept.
          if (!addresses.empty()) member.addresses = std::move(addresses);
        } else if (member.addresses.empty()) {
          member.why = found.error().message;
        }
        set_targets();
        const bool looking = std::any_of(members_.begin(), members_.end(), [](const Member& m) { return !!m.lookup; });
        if (targets_.empty() && !looking) on_all_members_failed();
        next();
      });
}

void EtcdClient::set_targets() {
  const auto before = targets_.empty() ? std::nullopt : std::optional(target().address);
  targets_.clear();
  for (std::size_t i = 0; i < members_.size(); ++i) {
    for (const auto& address : members_[i].addresses) targets_.push_back({i, address});
  }
  if (!before) return;
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    if (targets_[i].address == *before) current_ = i;
  }
}

void EtcdClient::post(std::string path, std::string body, Deadline by, OnBody on_body, OnError on_error) {
  if (closed_) return;
  requests_.push_back({std::move(path), std::move(body), by, std::move(on_body), std::move(on_error)});
  // Callbacks never come from within the call.
  asio::post(executor_, [self = shared_from_this()] { self->next(); });
}

void EtcdClient::expire() {
  const auto now = Clock::now();
  for (auto pending = requests_.begin(); pending != requests_.end();) {
    if (now < pending->by) {
      ++pending;
      continue;
    }
    const auto on_error = std::move(pending->on_error);
    requests_.erase(pending);
    on_error(Error{Errc::timeout, last_error_.empty() ? "etcd has not answered in time" : last_error_});
    if (closed_) return;
    pending = requests_.begin();
  }
}

void EtcdClient::next() {
  if (closed_ || busy_ || backing_off_) return;
  expire();
  if (closed_ || busy_ || backing_off_ || requests_.empty()) return;
  if (targets_.empty()) {
    const auto first = std::min_element(requests_.begin(), requests_.end(),
                                        [](const Request& a, const Request& b) { return a.by < b.by; });
    timer_.expires_at(std::min(first->by, Clock::now() + std::chrono::seconds(1)));
    timer_.async_wait([self = shared_from_this()](const boost::system::error_code& ec) {
      if (!ec) self->next();
    });
    return;
  }
  send();
}

std::unique_ptr<HttpConnection> EtcdClient::connection() const {
  return std::make_unique<HttpConnection>(streams_(members_[target().member].at.host), target().address);
}

std::string EtcdClient::request(const std::string& path, const std::string& body) const {
  const auto& at = members_[target().member];
  return concat("POST ", path, " HTTP/1.1\r\nHost: ", at.name(),
                "\r\nContent-Type: application/json\r\nUser-Agent: ddrun\r\n",
                token_.empty() ? "" : concat("Authorization: ", token_, "\r\n"), "Content-Length: ", body.size(),
                "\r\n\r\n", body);
}

void EtcdClient::send() {
  busy_ = true;
  Request& pending = requests_.front();
  ++pending.attempts;
  const bool fresh = !connection_ || !connection_->is_open();
  if (fresh) connection_ = connection();
  authenticating_ = !options_.user.empty() && token_.empty() && !auth_is_off_;
  sent_ = lease::FenceClock::now();
  // Connecting takes extra time, with TLS in particular.
  timer_.expires_after(fresh ? 2 * timeout_ : timeout_);
  timer_.async_wait([self = shared_from_this()](const boost::system::error_code& ec) {
    if (ec || !self->busy_ || Clock::now() < self->timer_.expiry()) return;
    self->attempt_failed(concat("no answer within ", format_duration(self->timeout_)), false);
  });
  using nlohmann::json;
  const auto done = [this](tl::expected<HttpResponse, HttpError> answer) { on_response(std::move(answer)); };
  if (authenticating_) {
    const json body{{"name", options_.user}, {"password", options_.password}};
    connection_->exchange(request("/v3/auth/authenticate", body.dump(-1, ' ', false, json::error_handler_t::replace)),
                          done);
  } else {
    connection_->exchange(request(pending.path, pending.body), done);
  }
}

void EtcdClient::on_response(tl::expected<HttpResponse, HttpError> answer) {
  const auto self = shared_from_this();
  timer_.cancel();
  if (!answer) {
    // The member closed an idle connection: not a failure.
    if (connection_->was_used() && answer.error().connected) {
      connection_.reset();
      busy_ = false;
      return next();
    }
    // etcd with TLS also closes a plaintext connection.
    const bool maybe_tls = answer.error().connected && !options_.tls && answer.error().why == "closed the connection";
    return attempt_failed(
        maybe_tls ? "closed the connection without an answer (does it want https?)" : answer.error().why,
        answer.error().permanent);
  }
  if (answer->status == 200) return authenticating_ ? on_authenticated(*answer) : on_ok(*answer);
  if (const auto error = parse_error(answer->body)) return on_error_response(*error, answer->status);
  if (answer->body.find("HTTP request to an HTTPS server") != std::string::npos) {
    return attempt_failed("it wants TLS (https)", true);
  }
  if (answer->status == 404) {
    return attempt_failed("does not know etcd's API v3: not an etcd, or one before 3.4", true);
  }
  attempt_failed(concat("answers with HTTP status ", answer->status), answer->status < 500);
}

void EtcdClient::on_ok(const HttpResponse& answer) {
  // The callback may close this client, or post again.
  auto pending = std::move(requests_.front());
  requests_.pop_front();
  const auto self = shared_from_this();
  if (!pending.on_body(answer.body)) {
    requests_.push_front(std::move(pending));
    return attempt_failed("does not answer as etcd does", true);
  }
  busy_ = false;
  if (closed_) return;
  set_healthy();
  next();
}

void EtcdClient::on_authenticated(const HttpResponse& answer) {
  auto token = parse_token(answer.body);
  if (!token) return attempt_failed("does not answer as etcd does", true);
  token_ = std::move(*token);
  busy_ = false;
  next();
}

void EtcdClient::on_error_response(const EtcdError& error, unsigned status) {
  const auto message_contains = [&](const char* text) { return error.message.find(text) != std::string::npos; };
  Request& pending = requests_.front();
  if (authenticating_ && (error.code == failed_precondition || message_contains("authentication is not enabled"))) {
    auth_is_off_ = true;
    busy_ = false;
    return next();
  }
  if (authenticating_ && (error.code == invalid_argument || error.code == unauthenticated)) {
    return on_unusable_etcd(concat("etcd refuses user '", options_.user, "': ", error.message));
  }
  if (!authenticating_ &&
      (error.code == unauthenticated || message_contains("auth token") || message_contains("revision of auth store")) &&
      !options_.user.empty()) {
    token_.clear();
    auth_is_off_ = false;
    if (pending.attempts > max_authentications) return attempt_failed(error.message, false);
    busy_ = false;
    return next();
  }
  if (error.code == unauthenticated || message_contains("user name is empty")) {
    return on_unusable_etcd("etcd wants a user and a password");
  }
  if (error.code == permission_denied) {
    return on_unusable_etcd(options_.user.empty() ? concat("etcd wants a user and a password: ", error.message)
                                                  : concat("etcd does not let user '", options_.user,
                                                           "' use keys below /ddrun/: ", error.message));
  }
  if (error.code == unavailable || error.code == deadline_exceeded || error.code == resource_exhausted ||
      status >= 500 || authenticating_) {
    return attempt_failed(error.message, false);
  }
  const auto on_error = std::move(pending.on_error);
  requests_.pop_front();
  busy_ = false;
  set_healthy();
  if (closed_) return;
  on_error(Error{error.code == not_found ? Errc::not_found : Errc::invalid_argument,
                 concat("etcd refuses: ", error.message)});
  next();
}

void EtcdClient::attempt_failed(std::string why, bool permanent) {
  const auto self = shared_from_this();
  connection_.reset();
  busy_ = false;
  timer_.cancel();
  Member& member = members_[target().member];
  member.why = std::move(why);
  member.permanent = permanent;
  last_error_ = concat("etcd at ", member.name(), ": ", member.why);
  current_ = current_ % targets_.size() + 1;
  ++failed_in_row_;
  close_watch();
  if (events_.on_member_changed) events_.on_member_changed();
  if (closed_) return;
  if (failed_in_row_ < targets_.size()) return next();
  failed_in_row_ = 0;
  on_all_members_failed();
}

void EtcdClient::on_all_members_failed() {
  std::vector<std::string> parts;
  bool permanent = true;
  for (const auto& member : members_) {
    parts.push_back(concat(member.name(), ": ", member.why));
    permanent = permanent && member.permanent;
  }
  const auto text = join(parts, "; ");
  if (permanent && !was_healthy_) return on_unusable_etcd(concat("cannot use etcd: ", text));
  last_error_ = concat("etcd cannot be asked: ", text);
  if (!std::exchange(error_reported_, true) && events_.on_status) events_.on_status(last_error_);
  if (closed_) return;
  if (Clock::now() - resolved_at_ >= resolve_interval) {
    resolved_at_ = Clock::now();
    for (std::size_t i = 0; i < members_.size(); ++i) resolve(i);
  }
  back_off(std::min(max_back_off, min_back_off * (1 << std::min<std::size_t>(failed_passes_++, 4))));
}

void EtcdClient::back_off(Milliseconds duration) {
  backing_off_ = true;
  static thread_local std::minstd_rand random{std::random_device()()};
  timer_.expires_after(duration / 2 + Milliseconds(random() % static_cast<unsigned>(duration.count() / 2 + 1)));
  timer_.async_wait([self = shared_from_this()](const boost::system::error_code& ec) {
    if (ec) return;
    self->backing_off_ = false;
    self->next();
  });
}

void EtcdClient::on_unusable_etcd(std::string why) {
  if (was_healthy_) return attempt_failed(std::move(why), false);
  const auto on_unusable = events_.on_unusable;
  const auto self = shared_from_this();
  close();
  busy_ = false;
  if (on_unusable) on_unusable(Error{Errc::invalid_argument, std::move(why)});
}

void EtcdClient::set_healthy() {
  was_healthy_ = true;
  failed_in_row_ = 0;
  failed_passes_ = 0;
  last_error_.clear();
  if (std::exchange(error_reported_, false) && events_.on_status) {
    events_.on_status(concat("etcd answers again (", members_[target().member].name(), ")"));
  }
}

void EtcdClient::watch(std::string body, std::function<void(std::string_view line)> on_line,
                       std::function<void(std::string why)> on_end) {
  close_watch();
  if (closed_ || targets_.empty()) return;
  watch_ = connection();
  auto ended = std::make_shared<std::function<void(std::string)>>([this, on_end = std::move(on_end)](std::string why) {
    const auto self = shared_from_this();
    const auto over = std::move(watch_);
    watch_timer_.cancel();
    on_end(std::move(why));
  });
  watch_timer_.expires_after(3 * timeout_);
  watch_timer_.async_wait([self = shared_from_this(), ended](const boost::system::error_code& ec) {
    if (ec || !self->watch_ || Clock::now() < self->watch_timer_.expiry()) return;
    (*ended)("no answer");
  });
  watch_->follow(
      request("/v3/watch", body),
      [this, on_line = std::move(on_line)](std::string_view line) {
        watch_timer_.cancel();
        on_line(line);
      },
      [ended](tl::expected<HttpResponse, HttpError> answer) {
        if (!answer) return (*ended)(std::move(answer.error().why));
        const auto error = parse_error(answer->body);
        (*ended)(error ? error->message : concat("HTTP status ", answer->status));
      });
}

void EtcdClient::close_watch() {
  watch_timer_.cancel();
  watch_.reset();
}

}  // namespace ddrun::etcd
