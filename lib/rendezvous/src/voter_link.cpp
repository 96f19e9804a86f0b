#include "voter_link.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <chrono>
#include <system_error>
#include <utility>

#include "ddrun/base/address.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::rendezvous {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr std::chrono::seconds time_to_find_voter{10};
constexpr std::chrono::seconds time_to_reach_voter{3};
constexpr std::chrono::seconds time_to_greet_voter{5};
constexpr Milliseconds first_pause{2};
constexpr Milliseconds longest_pause{500};

}  // namespace

VoterLink::VoterLink(asio::any_io_executor executor, Endpoint endpoint, const HmacKey* secret, Milliseconds silence,
                     Callbacks callbacks)
    : executor_(std::move(executor)),
      endpoint_(std::move(endpoint)),
      secret_(secret),
      silence_(silence),
      callbacks_(std::move(callbacks)),
      timer_(executor_),
      pause_(first_pause),
      trouble_("it has not been asked yet") {}

VoterLink::~VoterLink() { close(false); }

void VoterLink::close(bool abruptly) {
  alive_.reset();
  timer_.cancel();
  if (connection_) connection_->close(abruptly);
  connection_.reset();
}

void VoterLink::start() { look_up(); }

void VoterLink::send(const VoteRequest& request) {
  if (told_connected_ && connection_) connection_->send(vote_request_type, encode(request));
}

std::string VoterLink::where() const { return host_port_text(endpoint_.host, endpoint_.port); }

void VoterLink::look_up() {
  addresses_.clear();
  for (const auto& literal : literal_socket_addresses(endpoint_.host, endpoint_.port)) {
    const auto address = IpAddress::of(literal.storage);
    if (endpoint_.host != "localhost") addresses_.push_back(endpoint_.host);  // with its zone
    else if (address) addresses_.push_back(address->text());
  }
  if (!addresses_.empty()) return dial();
  looking_up_.emplace(helper::look_up_host(executor_, endpoint_.host, time_to_find_voter,
                                           [this](const Result<std::vector<std::string>>& found) {
                                             if (!found) return failed(found.error().message);
                                             addresses_ = *found;
                                             dial();
                                           }));
}

void VoterLink::dial() {
  if (addresses_.empty()) return failed(trouble_);
  const std::string address = addresses_.front();
  addresses_.erase(addresses_.begin());
  dial(address);
}

void VoterLink::dial(const std::string& address) {
  error_code ec;
  const auto ip = asio::ip::make_address(address, ec);
  if (ec) return failed(concat(where(), ": ", address, " is no address"));
  const tcp::endpoint target(ip, endpoint_.port);
  // By hand: Asio's own sockets would be inherited by every worker.
  const int fd = ::socket(target.protocol().family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return failed(concat("no socket can be made: ", std::generic_category().message(errno)));
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const auto socket = std::make_shared<tcp::socket>(executor_);
  socket->assign(target.protocol(), fd, ec);
  timer_.expires_after(time_to_reach_voter);
  timer_.async_wait([socket](const error_code& result) {
    error_code ignored;
    if (!result) socket->close(ignored);
  });
  socket->async_connect(target, [weak = std::weak_ptr(alive_), socket, target](const error_code& result) {
    const auto alive = weak.lock();
    if (!alive) return;
    VoterLink& self = **alive;
    self.timer_.cancel();
    error_code ignored;
    const bool to_itself = !result && socket->local_endpoint(ignored) == target;
    if (!result && !to_itself) return self.connected(std::move(*socket));
    self.trouble_ = result == asio::error::connection_refused || to_itself ? concat("nobody listens on ", self.where())
                    : result == asio::error::operation_aborted
                        ? concat(self.where(), " does not answer")
                        : concat(self.where(), " cannot be reached: ", result.message());
    self.dial();
  });
}

void VoterLink::connected(tcp::socket socket) {
  VoteConnection::Callbacks callbacks;
  callbacks.on_ready = [this] {
    pause_ = first_pause;
    trouble_.clear();
    hopeless_ = false;
    told_connected_ = true;
    watch();
    callbacks_.on_connected();
  };
  callbacks.on_frame = [this](std::uint8_t type, std::string_view payload) { on_frame(type, payload); };
  callbacks.on_end = [this](const std::string& why, bool, std::optional<Greeting> greeting) { on_end(why, greeting); };
  connection_ =
      std::make_shared<VoteConnection>(std::move(socket), VoteConnection::agents(secret_), std::move(callbacks));
  connection_->start(time_to_greet_voter);
}

/// The connection forgets its callbacks when it is closed, so nothing of the one that calls this is used behind that.
void VoterLink::on_frame(std::uint8_t type, std::string_view payload) {
  const auto answer = decode_vote_answer(payload);
  if (type == vote_answer_type && answer) return callbacks_.on_answer(*answer);
  connection_->close(true);
  on_end("it sent what cannot be used", std::nullopt);
}

void VoterLink::on_end(const std::string& why, std::optional<Greeting> greeting) {
  std::string what = concat(where(), ": ", why);
  if (greeting) {
    hopeless_ = *greeting != Greeting::busy;
    switch (*greeting) {
      case Greeting::stranger: what = concat("what listens on ", where(), " is not ddrun"); break;
      case Greeting::other_version:
        what =
            concat("the ddrun on ", where(), " speaks another version of its protocol: start the same on all machines");
        break;
      case Greeting::needs_secret:
        what = concat("the ddrun on ", where(), " asks for a secret, and this one has none");
        break;
      case Greeting::needs_none:
        what = concat("the ddrun on ", where(), " was started with --insecure, and this one has a secret");
        break;
      case Greeting::turned_away:
      case Greeting::wrong_secret:
        what = concat("the ddrun on ", where(),
                      " has another secret: give all the same one (--secret-file or DDRUN_SECRET)");
        break;
      default: what = concat(where(), " has too many connections to greet at once"); break;
    }
  }
  connection_.reset();
  if (std::exchange(told_connected_, false)) callbacks_.on_disconnected();
  failed(what);
}

void VoterLink::failed(const std::string& why) {
  trouble_ = why;
  timer_.expires_after(pause_);
  pause_ = std::min(2 * pause_, longest_pause);
  timer_.async_wait([weak = std::weak_ptr(alive_)](const error_code& ec) {
    const auto alive = weak.lock();
    if (!ec && alive) (*alive)->look_up();
  });
}

void VoterLink::watch() {
  timer_.expires_at(connection_->heard() + silence_);
  timer_.async_wait([weak = std::weak_ptr(alive_)](const error_code& ec) {
    const auto alive = weak.lock();
    if (ec || !alive) return;
    VoterLink& self = **alive;
    if (!self.connection_) return;
    if (Clock::now() < self.connection_->heard() + self.silence_) return self.watch();
    // It may be that this process stood still: abruptly, for it has not ended.
    self.connection_->close(true);
    self.on_end(concat("nothing was heard from it for ", format_duration(self.silence_)), std::nullopt);
  });
}

}  // namespace ddrun::rendezvous
