#include "voter_server.hpp"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <optional>
#include <utility>

#include "ddrun/base/address.hpp"

namespace ddrun::rendezvous {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

// As of a coordinator: PROTOCOL.md, section 1.
constexpr std::chrono::seconds time_to_enter{5};
/// Agents that have entered say something every 5 s.
constexpr std::chrono::seconds longest_silence_of_a_guest{20};
constexpr std::size_t most_strangers = 512;
constexpr std::ptrdiff_t most_strangers_of_one_address = 32;
/// Where descriptors ran out, before it looks again.
constexpr std::chrono::milliseconds rest{200};

}  // namespace

VoterServer::VoterServer(const asio::any_io_executor& executor, std::vector<Listener> listeners, const HmacKey* secret,
                         Voter voter, std::function<void()> on_change)
    : executor_(executor),
      listeners_(std::move(listeners)),
      secret_(secret),
      voter_(std::move(voter)),
      on_change_(std::move(on_change)),
      timer_(executor) {}

VoterServer::~VoterServer() {
  alive_.reset();
  for (auto& [number, guest] : guests_) guest.connection->close(false);
  for (auto& wait : waits_) wait->release();  // the listener's own
}

Result<void> VoterServer::start() {
  for (std::size_t i = 0; i < listeners_.size(); ++i) {
    error_code ec;
    auto descriptor = std::make_unique<asio::posix::stream_descriptor>(executor_);
    descriptor->assign(listeners_[i].fd.get(), ec);
    if (ec) return fail(Errc::unavailable, "cannot listen for votes: " + ec.message(), ec);
    waits_.push_back(std::move(descriptor));
    wait(i);
  }
  told_ = state();
  return {};
}

void VoterServer::wait(std::size_t listener) {
  waits_[listener]->async_wait(asio::posix::stream_descriptor::wait_read,
                               [weak = std::weak_ptr(alive_), listener](const error_code& ec) {
                                 const auto self = weak.lock();
                                 if (!ec && self) (*self)->accept(listener);
                               });
}

void VoterServer::accept(std::size_t listener) {
  for (;;) {
    UniqueFd fd;
    sockaddr_storage from{};
    switch (acceptor_.next(listeners_[listener], fd, from)) {
      case Acceptor::Outcome::accepted: adopt(std::move(fd), from); continue;
      case Acceptor::Outcome::turned_away:
      case Acceptor::Outcome::failed: continue;
      case Acceptor::Outcome::none: return wait(listener);
      case Acceptor::Outcome::no_room: break;
    }
    const auto timer = std::make_shared<asio::steady_timer>(executor_, rest);
    timer->async_wait([timer, weak = std::weak_ptr(alive_), listener](const error_code& ec) {
      const auto self = weak.lock();
      if (!ec && self) (*self)->wait(listener);
    });
    return;
  }
}

void VoterServer::adopt(UniqueFd fd, const sockaddr_storage& from) {
  const auto address = IpAddress::of(from);
  const std::string text = address ? address->text() : std::string();
  const auto of_this_address = std::count_if(guests_.begin(), guests_.end(), [&](const auto& guest) {
    return !guest.second.entered && guest.second.address == text;
  });
  if (strangers_ >= most_strangers || of_this_address >= most_strangers_of_one_address) return;
  error_code ec;
  asio::ip::tcp::socket socket(executor_);
  socket.assign(from.ss_family == AF_INET6 ? asio::ip::tcp::v6() : asio::ip::tcp::v4(), fd.get(), ec);
  if (ec) return;
  (void)fd.release();
  const std::uint64_t number = ++last_guest_;
  VoteConnection::Callbacks callbacks;
  callbacks.on_ready = [this, number] { guests_.at(number).connection->end_if_silent_for(time_to_enter); };
  callbacks.on_frame = [this, number](std::uint8_t type, std::string_view payload) {
    on_request(number, type, payload);
  };
  callbacks.on_end = [this, number](const std::string&, bool in_order, std::optional<Greeting>) {
    on_end(number, in_order);
  };
  auto connection =
      std::make_shared<VoteConnection>(std::move(socket), VoteConnection::voters(secret_), std::move(callbacks));
  guests_[number] = {connection, text, false, ""};
  ++strangers_;
  connection->start(time_to_enter);
}

void VoterServer::on_request(std::uint64_t number, std::uint8_t type, std::string_view payload) {
  Guest& guest = guests_.at(number);
  const auto connection = guest.connection;
  const auto request = decode_vote_request(payload);
  const bool enters = request && request->kind == VoteRequest::Kind::enter;
  if (type != vote_request_type || !request || request->number == 0 || (!guest.entered && !enters)) {
    connection->close(true);
    return on_end(number, false);
  }
  const VoteAnswer answer = voter_.ask(*request, Voter::Time::clock::now());
  const bool of_this_job = answer.ballot != VoteAnswer::Ballot::other_job;
  if (of_this_job && !std::exchange(guest.entered, true)) {
    --strangers_;
    connection->end_if_silent_for(longest_silence_of_a_guest);
  }
  if (request->kind == VoteRequest::Kind::vote || request->kind == VoteRequest::Kind::hold) {
    guest.candidate = request->candidate;
  }
  connection->send(vote_answer_type, encode(answer));
  tell_changes();
}

void VoterServer::on_end(std::uint64_t number, bool in_order) {
  const auto found = guests_.find(number);
  if (found == guests_.end()) return;
  if (!found->second.entered) --strangers_;
  // Closed in order: by its process, or by the system as that has ended.
  if (in_order && !found->second.candidate.empty()) voter_.ended(found->second.candidate);
  guests_.erase(found);
  tell_changes();
}

VoteAnswer VoterServer::ask(const VoteRequest& request) {
  VoteAnswer answer = voter_.ask(request, Voter::Time::clock::now());
  tell_changes();
  return answer;
}

/// Agents are told who leads, and the verdict; what else changes they hear as they ask.
void VoterServer::tell_changes() {
  arm();
  const VoteAnswer now = state();
  const bool same =
      now.leader_term == told_.leader_term && now.leader_address == told_.leader_address && now.sure == told_.sure;
  if (same) return;
  told_ = now;
  const std::string payload = encode(now);
  std::vector<std::shared_ptr<VoteConnection>> entered;
  for (const auto& [number, guest] : guests_) {
    if (guest.entered) entered.push_back(guest.connection);
  }
  for (const auto& connection : entered) connection->send(vote_answer_type, payload);
  if (on_change_) on_change_();
}

void VoterServer::arm() {
  const auto now = Voter::Time::clock::now();
  const auto next = voter_.next_change(now);
  if (!next) {
    timer_.cancel();
    return;
  }
  timer_.expires_after(std::chrono::ceil<std::chrono::milliseconds>(*next - now));
  timer_.async_wait([weak = std::weak_ptr(alive_)](const error_code& ec) {
    const auto self = weak.lock();
    if (!ec && self) (*self)->tell_changes();
  });
}

}  // namespace ddrun::rendezvous
