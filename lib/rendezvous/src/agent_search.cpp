#include <netinet/tcp.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <cerrno>

#include "agent_link_impl.hpp"
#include "ddrun/base/host_port.hpp"
#include "ddrun/base/ip_address.hpp"
#include "ddrun/base/text.hpp"

// Looking for the coordinator, until a connection is there to be greeted.

namespace ddrun::rendezvous {

namespace asio = boost::asio;

namespace {

constexpr Milliseconds longest_pause{1000};
/// For a connection to be made: a packet that is lost is sent again after one second, then after two more.
constexpr std::chrono::seconds time_to_connect{5};
constexpr std::chrono::seconds time_to_greet{5};
constexpr std::chrono::seconds time_to_look_up{10};

}  // namespace

void AgentLink::Impl::begin_pass() {
  if (Clock::now() >= options_.connect_by) return give_up();
  candidate_ = 0;
  next_candidate();
}

void AgentLink::Impl::next_candidate() {
  while (candidate_ < candidates_.size() && candidate().for_good) ++candidate_;
  if (candidate_ == candidates_.size()) return end_pass();
  const auto& [host, port] = candidate().endpoint;
  error_code ec;
  std::vector<std::string> literals;
  if (host == "localhost") literals = {"127.0.0.1", "::1"};
  else if (const auto address = asio::ip::make_address(host, ec); !ec) literals = {address.to_string()};
  const auto found = [this](const std::vector<std::string>& addresses) {
    targets_.clear();
    for (auto text = addresses.rbegin(); text != addresses.rend(); ++text) {
      error_code bad;
      const auto address = asio::ip::make_address(*text, bad);
      if (!bad) targets_.emplace_back(address, candidate().endpoint.port);
    }
    next_target();
  };
  if (!literals.empty()) return found(literals);
  stage_ = Stage::looking;
  const auto patience = std::min<Clock::duration>(time_to_look_up, options_.connect_by - Clock::now());
  lookup_->start(
      host, patience,
      [this, self = weak_from_this(), attempt = attempt_, found](Result<std::vector<std::string>> addresses) {
        const auto alive = self.lock();
        if (!alive || attempt != attempt_) return;
        if (addresses) return found(*addresses);
        targets_.clear();
        attempt_failed(addresses.error().message);
      });
}

void AgentLink::Impl::next_target() {
  if (targets_.empty() || candidate().for_good) {
    ++candidate_;
    return next_candidate();
  }
  if (Clock::now() >= options_.connect_by) return give_up();
  target_ = targets_.back();
  targets_.pop_back();
  connect(target_);
}

void AgentLink::Impl::end_pass() {
  const bool hopeless =
      std::all_of(candidates_.begin(), candidates_.end(), [](const auto& one) { return one.for_good.has_value(); });
  if (hopeless) return give_up();
  stage_ = Stage::looking;
  after(pause_, [this] { begin_pass(); });
  pause_ = std::min(2 * pause_, longest_pause);
}

/// As the user gave it: "node0:29400".
std::string AgentLink::Impl::where_text() const {
  return host_port_text(candidate().endpoint.host, candidate().endpoint.port);
}

std::string AgentLink::Impl::address_text(const tcp::endpoint& endpoint) {
  const auto address = IpAddress::parse(endpoint.address().to_string());
  return address ? address->text() : endpoint.address().to_string();
}

/// "node0:29400 (10.0.0.7)", or only what the user gave if that says the same.
std::string AgentLink::Impl::target_text() const {
  const auto named = where_text();
  const auto address = address_text(target_);
  return candidate().endpoint.host == address ? named : concat(named, " (", address, ")");
}

void AgentLink::Impl::connect(const tcp::endpoint& target) {
  // By hand: Asio's own sockets would be inherited by every worker.
  const auto protocol = target.protocol();
  const int fd = ::socket(protocol.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return attempt_failed(concat("no socket can be made: ", std::generic_category().message(errno)));
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  error_code ec;
  socket_.assign(protocol, fd, ec);
  socket_.non_blocking(true, ec);
  if (!options_.local_address.empty()) {
    const auto local = asio::ip::make_address(options_.local_address, ec);
    if (ec || (local.is_v4() != target.address().is_v4())) {
      return attempt_failed(concat(target_text(), " cannot be reached from '", options_.local_address,
                                   "', which is no address of the same kind"));
    }
    socket_.bind({local, 0}, ec);
    if (ec) return attempt_failed(concat("cannot connect from ", options_.local_address, ": ", ec.message()));
  }
  stage_ = Stage::connecting;
  after(time_to_connect,
        [this] { attempt_failed(concat(target_text(), " does not answer; is there a firewall in between?")); });
  socket_.async_connect(target, [self = shared_from_this(), attempt = attempt_](const error_code& result) {
    if (attempt != self->attempt_) return;
    if (!result) return self->on_connected();
    if (result == asio::error::connection_refused) {
      return self->attempt_failed(concat("nobody listens on ", self->target_text()));
    }
    self->attempt_failed(concat(self->target_text(), " cannot be reached: ", result.message()));
  });
}

void AgentLink::Impl::on_connected() {
  // Where nobody listens on a port that outgoing connections may use too, the system can connect a socket to itself.
  error_code ec;
  if (socket_.local_endpoint(ec) == target_) return attempt_failed(concat("nobody listens on ", target_text()));
  stage_ = Stage::greeting;
  in_.clear();
  out_.clear();
  after(time_to_greet,
        [this] { attempt_failed(concat("what listens on ", target_text(), " does not answer ddrun's greeting")); });
  handshake_.emplace(secret_ ? &*secret_ : nullptr, random_nonce());
  out_ = handshake_->begin();
  write();
  read();
}

/// Of one address; the others follow, unless all would end the same.
void AgentLink::Impl::attempt_failed(const std::string& why, std::optional<Errc> for_good) {
  hang_up();
  candidate().trouble = why;
  candidate().for_good = for_good;
  later([this, why] {
    const auto on_retry = callbacks_.on_retry;
    const auto self = shared_from_this();
    const auto attempt = attempt_;
    if (on_retry) on_retry(why);
    if (attempt == attempt_) next_target();
  });
}

void AgentLink::Impl::give_up() {
  std::string troubles;
  Errc code = Errc::timeout;
  for (const auto& one : candidates_) {
    if (one.for_good) code = *one.for_good;
    if (one.trouble.empty()) continue;
    troubles += (troubles.empty() ? "" : "; ") + one.trouble;
  }
  if (candidates_.empty()) return lost(Errc::invalid_argument, "there is no address of a coordinator");
  if (troubles.empty()) troubles = "the time was over before it could be tried";
  const bool hopeless =
      std::all_of(candidates_.begin(), candidates_.end(), [](const auto& one) { return one.for_good.has_value(); });
  if (hopeless) return lost(code, troubles);
  lost(Errc::timeout, concat("the coordinator could not be reached in time: ", troubles,
                             ". Is the ddrun there running, and is its port open for this machine?"));
}

}  // namespace ddrun::rendezvous
