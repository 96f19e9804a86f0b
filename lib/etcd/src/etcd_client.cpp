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

constexpr std::chrono::seconds time_to_look_up{5};
constexpr std::chrono::seconds look_up_again_after{5};
constexpr Milliseconds first_pause{50}, longest_pause{500};
constexpr int most_authentications = 3;  // for one request

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
                       StreamMaker streams, Milliseconds bound, Events events)
    : options_(std::move(options)),
      streams_(std::move(streams)),
      bound_(bound),
      events_(std::move(events)),
      executor_(executor),
      timer_(executor),
      watch_timer_(executor) {
  for (auto& endpoint : endpoints) members_.push_back({std::move(endpoint), {}, {}, {}, false});
  // Not all clients ask the same member.
  current_ = std::random_device()();
}

void EtcdClient::start() {
  looked_up_ = Clock::now();
  for (std::size_t i = 0; i < members_.size(); ++i) look_up(i);
  next();
}

void EtcdClient::close() {
  closed_ = true;
  events_ = {};
  questions_.clear();
  connection_.reset();
  close_watch();
  timer_.cancel();
  for (auto& member : members_) member.lookup.reset();
}

void EtcdClient::look_up(std::size_t index) {
  Member& member = members_[index];
  const std::string host = member.at.host == "localhost" ? "127.0.0.1" : member.at.host;
  if (const auto address = endpoint_of(host, member.at.port)) {
    member.addresses = {*address};
    return set_targets();
  }
  if (member.lookup) return;
  member.lookup = helper::look_up_host(
      executor_, host, time_to_look_up, [this, index](const Result<std::vector<std::string>>& found) {
        Member& member = members_[index];
        const auto running = std::exchange(member.lookup, nullptr);
        if (closed_) return;
        if (found) {
          decltype(member.addresses) addresses;
          for (const auto& text : *found) {
            if (const auto address = endpoint_of(text, member.at.port)) addresses.push_back(*address);
          }
          // What was good before is better than nothing.
          if (!addresses.empty()) member.addresses = std::move(addresses);
        } else if (member.addresses.empty()) {
          member.why = found.error().message;
        }
        set_targets();
        const bool looking = std::any_of(members_.begin(), members_.end(), [](const Member& m) { return !!m.lookup; });
        if (targets_.empty() && !looking) pass_failed();
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

void EtcdClient::ask(std::string path, std::string body, Deadline by, Take take, Fail fail) {
  if (closed_) return;
  questions_.push_back({std::move(path), std::move(body), by, std::move(take), std::move(fail)});
  // Never from within the call.
  asio::post(executor_, [self = shared_from_this()] { self->next(); });
}

void EtcdClient::expire() {
  const auto now = Clock::now();
  for (auto question = questions_.begin(); question != questions_.end();) {
    if (now < question->by) {
      ++question;
      continue;
    }
    const auto fail = std::move(question->fail);
    questions_.erase(question);
    fail(Error{Errc::timeout, trouble_.empty() ? "etcd has not answered in time" : trouble_});
    if (closed_) return;
    question = questions_.begin();
  }
}

void EtcdClient::next() {
  if (closed_ || busy_ || pausing_) return;
  expire();
  if (closed_ || busy_ || pausing_ || questions_.empty()) return;
  if (targets_.empty()) {
    const auto first = std::min_element(questions_.begin(), questions_.end(),
                                        [](const Question& a, const Question& b) { return a.by < b.by; });
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
  Question& question = questions_.front();
  ++question.tried;
  const bool fresh = !connection_ || !connection_->is_open();
  if (fresh) connection_ = connection();
  authenticating_ = !options_.user.empty() && token_.empty() && !auth_is_off_;
  sent_ = lease::FenceClock::now();
  // To connect takes its time, with TLS in particular.
  timer_.expires_after(fresh ? 2 * bound_ : bound_);
  timer_.async_wait([self = shared_from_this()](const boost::system::error_code& ec) {
    if (ec || !self->busy_ || Clock::now() < self->timer_.expiry()) return;
    self->attempt_failed(concat("no answer within ", format_duration(self->bound_)), false);
  });
  using nlohmann::json;
  const auto done = [this](tl::expected<HttpAnswer, HttpFailure> answer) { answered(std::move(answer)); };
  if (authenticating_) {
    const json body{{"name", options_.user}, {"password", options_.password}};
    connection_->exchange(request("/v3/auth/authenticate", body.dump(-1, ' ', false, json::error_handler_t::replace)),
                          done);
  } else {
    connection_->exchange(request(question.path, question.body), done);
  }
}

void EtcdClient::answered(tl::expected<HttpAnswer, HttpFailure> answer) {
  const auto self = shared_from_this();
  timer_.cancel();
  if (!answer) {
    // It has closed a connection that was not used for a while: that says nothing.
    if (connection_->was_used() && answer.error().connected) {
      connection_.reset();
      busy_ = false;
      return next();
    }
    // So does etcd with one that speaks no TLS.
    const bool mute = answer.error().connected && !options_.tls && answer.error().why == "closed the connection";
    return attempt_failed(mute ? "closed the connection without an answer (does it want https?)" : answer.error().why,
                          answer.error().for_good);
  }
  if (answer->status == 200) return authenticating_ ? authenticated(*answer) : understood(*answer);
  if (const auto error = parse_error(answer->body)) return refused(*error, answer->status);
  if (answer->body.find("HTTP request to an HTTPS server") != std::string::npos) {
    return attempt_failed("it wants TLS (https)", true);
  }
  if (answer->status == 404) {
    return attempt_failed("does not know etcd's API v3: not an etcd, or one before 3.4", true);
  }
  attempt_failed(concat("answers with HTTP status ", answer->status), answer->status < 500);
}

void EtcdClient::understood(const HttpAnswer& answer) {
  // Who asked may close this, and ask again.
  auto question = std::move(questions_.front());
  questions_.pop_front();
  const auto keep = shared_from_this();
  if (!question.take(answer.body)) {
    questions_.push_front(std::move(question));
    return attempt_failed("does not answer as etcd does", true);
  }
  busy_ = false;
  if (closed_) return;
  well();
  next();
}

void EtcdClient::authenticated(const HttpAnswer& answer) {
  auto token = parse_token(answer.body);
  if (!token) return attempt_failed("does not answer as etcd does", true);
  token_ = std::move(*token);
  busy_ = false;
  next();
}

void EtcdClient::refused(const EtcdError& error, unsigned status) {
  const auto says = [&](const char* text) { return error.message.find(text) != std::string::npos; };
  Question& question = questions_.front();
  if (authenticating_ && (error.code == failed_precondition || says("authentication is not enabled"))) {
    auth_is_off_ = true;
    busy_ = false;
    return next();
  }
  if (authenticating_ && (error.code == invalid_argument || error.code == unauthenticated)) {
    return unusable(concat("etcd refuses user '", options_.user, "': ", error.message));
  }
  if (!authenticating_ && (error.code == unauthenticated || says("auth token") || says("revision of auth store")) &&
      !options_.user.empty()) {
    token_.clear();
    auth_is_off_ = false;
    if (question.tried > most_authentications) return attempt_failed(error.message, false);
    busy_ = false;
    return next();
  }
  if (error.code == unauthenticated || says("user name is empty")) {
    return unusable("etcd wants a user and a password");
  }
  if (error.code == permission_denied) {
    return unusable(options_.user.empty() ? concat("etcd wants a user and a password: ", error.message)
                                          : concat("etcd does not let user '", options_.user,
                                                   "' use keys below /ddrun/: ", error.message));
  }
  if (error.code == unavailable || error.code == deadline_exceeded || error.code == resource_exhausted ||
      status >= 500 || authenticating_) {
    return attempt_failed(error.message, false);
  }
  const auto fail = std::move(question.fail);
  questions_.pop_front();
  busy_ = false;
  well();
  if (closed_) return;
  fail(Error{error.code == not_found ? Errc::not_found : Errc::invalid_argument,
             concat("etcd refuses: ", error.message)});
  next();
}

void EtcdClient::attempt_failed(std::string why, bool for_good) {
  const auto self = shared_from_this();
  connection_.reset();
  busy_ = false;
  timer_.cancel();
  Member& member = members_[target().member];
  member.why = std::move(why);
  member.for_good = for_good;
  trouble_ = concat("etcd at ", member.name(), ": ", member.why);
  current_ = current_ % targets_.size() + 1;
  ++failed_in_row_;
  close_watch();
  if (events_.on_moved) events_.on_moved();
  if (closed_) return;
  if (failed_in_row_ < targets_.size()) return next();
  failed_in_row_ = 0;
  pass_failed();
}

void EtcdClient::pass_failed() {
  std::vector<std::string> parts;
  bool for_good = true;
  for (const auto& member : members_) {
    parts.push_back(concat(member.name(), ": ", member.why));
    for_good = for_good && member.for_good;
  }
  const auto text = join(parts, "; ");
  if (for_good && !was_well_) return unusable(concat("cannot use etcd: ", text));
  trouble_ = concat("etcd cannot be asked: ", text);
  if (!std::exchange(trouble_told_, true) && events_.on_trouble) events_.on_trouble(trouble_);
  if (closed_) return;
  if (Clock::now() - looked_up_ >= look_up_again_after) {
    looked_up_ = Clock::now();
    for (std::size_t i = 0; i < members_.size(); ++i) look_up(i);
  }
  pause(std::min(longest_pause, first_pause * (1 << std::min<std::size_t>(failed_passes_++, 4))));
}

void EtcdClient::pause(Milliseconds duration) {
  pausing_ = true;
  static thread_local std::minstd_rand random{std::random_device()()};
  timer_.expires_after(duration / 2 + Milliseconds(random() % static_cast<unsigned>(duration.count() / 2 + 1)));
  timer_.async_wait([self = shared_from_this()](const boost::system::error_code& ec) {
    if (ec) return;
    self->pausing_ = false;
    self->next();
  });
}

void EtcdClient::unusable(std::string why) {
  if (was_well_) return attempt_failed(std::move(why), false);
  const auto on_unusable = events_.on_unusable;
  const auto self = shared_from_this();
  close();
  busy_ = false;
  if (on_unusable) on_unusable(Error{Errc::invalid_argument, std::move(why)});
}

void EtcdClient::well() {
  was_well_ = true;
  failed_in_row_ = 0;
  failed_passes_ = 0;
  trouble_.clear();
  if (std::exchange(trouble_told_, false) && events_.on_trouble) {
    events_.on_trouble(concat("etcd answers again (", members_[target().member].name(), ")"));
  }
}

void EtcdClient::watch(std::string body, std::function<void(std::string_view line)> on_line,
                       std::function<void(std::string why)> on_end) {
  close_watch();
  if (closed_ || targets_.empty()) return;
  watch_ = connection();
  auto ended = std::make_shared<std::function<void(std::string)>>([this, on_end = std::move(on_end)](std::string why) {
    const auto keep = shared_from_this();
    const auto over = std::move(watch_);
    watch_timer_.cancel();
    on_end(std::move(why));
  });
  watch_timer_.expires_after(3 * bound_);
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
      [ended](tl::expected<HttpAnswer, HttpFailure> answer) {
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
