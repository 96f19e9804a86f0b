#include <algorithm>
#include <cerrno>

#include "coordinator_loop.hpp"
#include "ddrun/base/text.hpp"

// Who comes, and whether it is an agent that knows the secret.

namespace ddrun::rendezvous {

namespace {

// PROTOCOL.md, section 1.
constexpr std::chrono::seconds time_to_join{5};
constexpr std::size_t most_greeting_of_one_address = 32;

}  // namespace

void CoordinatorServer::Loop::accept_from(Listener& listener) {
  // Some at a time: those who are here already have their turn too.
  for (int left = 64; left > 0 && greeting() < most_greeting; --left) {
    UniqueFd fd;
    sockaddr_storage peer{};
    switch (acceptor_.next(listener, fd, peer)) {
      case Acceptor::Outcome::accepted: adopt(std::move(fd), peer); break;
      case Acceptor::Outcome::turned_away: ++stats_.turned_away; break;  // cut off, an agent tries again
      case Acceptor::Outcome::failed: break;
      case Acceptor::Outcome::nobody: return;
      case Acceptor::Outcome::no_room: out_of_descriptors_ = true; return;
    }
  }
}

/// While there is no room nobody is taken out of the system's queue.
void CoordinatorServer::Loop::listen(bool wanted) {
  if (stopping_) return;
  listening_ = wanted;
  for (std::size_t i = 0; i < listeners_.size(); ++i) {
    (void)thread_.watch(EPOLL_CTL_MOD, listeners_[i].fd.get(), wanted ? std::uint32_t{EPOLLIN} : 0,
                        first_listener_token + i);
  }
}

void CoordinatorServer::Loop::adopt(UniqueFd fd, const sockaddr_storage& peer) {
  const auto address = IpAddress::of(peer);
  if (!address) return;
  ++stats_.accepted;
  const auto of_same_address = std::count_if(newcomers_.begin(), newcomers_.end(),
                                             [&](const auto& entry) { return entry.second.address == *address; });
  if (static_cast<std::size_t>(of_same_address) >= most_greeting_of_one_address) {
    const auto reply = CoordinatorHandshake::busy_reply();
    (void)!::send(fd.get(), reply.data(), reply.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    notice(++stats_.turned_away, concat("too many connections from ", address->text(),
                                        " do not say who they are; more of them are turned away"));
    return;
  }
  const LinkId id = ++last_id_;
  if (!thread_.watch(EPOLL_CTL_ADD, fd.get(), EPOLLIN, token_of(id))) return;
  newcomers_.try_emplace(id, std::move(fd), *address, secret_ ? &*secret_ : nullptr);
  to_join_by_.emplace_back(now() + time_to_join, id);
}

void CoordinatorServer::Loop::dismiss(LinkId id) {
  const auto found = newcomers_.find(id);
  // By hand: closing does not end the watch while a child that was just cloned holds a copy of the descriptor.
  thread_.forget(found->second.fd.get());
  ::shutdown(found->second.fd.get(), SHUT_RDWR);
  newcomers_.erase(found);
}

void CoordinatorServer::Loop::dismiss(LinkId id, std::uint64_t& counter, const std::string& text) {
  dismiss(id);
  notice(++counter, text);
}

void CoordinatorServer::Loop::on_newcomer(LinkId id, Newcomer& newcomer) {
  const ssize_t got = ::recv(newcomer.fd.get(), buffer_.get(), buffer_size, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  if (got <= 0) {
    ++stats_.too_slow;
    return dismiss(id);
  }
  stats_.bytes_in += static_cast<std::size_t>(got);
  std::string_view bytes(buffer_.get(), static_cast<std::size_t>(got));
  std::string answer;
  const Greeting state = newcomer.handshake.feed(bytes, answer);
  if (!answer.empty()) {
    const ssize_t sent = ::send(newcomer.fd.get(), answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent != static_cast<ssize_t>(answer.size())) {
      ++stats_.too_slow;
      return dismiss(id);
    }
    stats_.bytes_out += answer.size();
  }
  const auto who = newcomer.address.text();
  switch (state) {
    case Greeting::going_on: return;
    case Greeting::done: break;
    case Greeting::other_version:
      return dismiss(id, stats_.other_versions,
                     concat("an agent on ", who, " speaks version ", newcomer.handshake.peer_version(),
                            " of ddrun's protocol, and this ddrun version ", protocol_version,
                            ": start the same ddrun on all machines"));
    case Greeting::wrong_secret:
      return dismiss(id, stats_.wrong_secrets,
                     concat("an agent on ", who,
                            " has another secret and was turned away: give it the "
                            "same one (--secret-file or DDRUN_SECRET)"));
    case Greeting::needs_secret:
      return dismiss(id, stats_.wrong_secrets,
                     concat("an agent on ", who,
                            " has no secret and was turned away: give it that of the job "
                            "(--secret-file or DDRUN_SECRET)"));
    case Greeting::needs_none:
      return dismiss(id, stats_.wrong_secrets,
                     concat("an agent on ", who,
                            " has a secret, but the coordinator was started with --insecure: start "
                            "all agents with it, or none"));
    case Greeting::stranger:
    case Greeting::busy:
    case Greeting::turned_away:  // this and the one before are for agents
      return dismiss(
          id, stats_.strangers,
          concat("something on ", who, " that is not ddrun has connected to port ", port_, " and was turned away"));
  }
  Link& link = links_.try_emplace(id, newcomer, newcomer.handshake.keys()).first->second;
  newcomers_.erase(id);
  ++new_links_;
  take_frames(id, link, bytes);
}

}  // namespace ddrun::rendezvous
