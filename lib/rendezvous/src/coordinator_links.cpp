#include <algorithm>
#include <cerrno>

#include "codec.hpp"
#include "coordinator_loop.hpp"
#include "ddrun/base/connection_buffer.hpp"
#include "ddrun/base/socket_address.hpp"
#include "ddrun/base/text.hpp"

// Who is here: what agents say and are told, until they are gone.

namespace ddrun::rendezvous {

namespace {

/// For an agent to take what it was told last, and hang up as well.
constexpr std::chrono::seconds time_to_hang_up{5};
/// An agent for which so many bytes wait does not read.
constexpr std::size_t most_unsent = 64 * 1024 * 1024;

}  // namespace

void CoordinatorServer::Loop::on_link(LinkId id, Link& link, std::uint32_t events) {
  if (link.state == Link::State::gone) return;
  if ((events & ~std::uint32_t{EPOLLOUT}) != 0) receive(id, link);
  if ((events & EPOLLOUT) != 0 && link.state != Link::State::gone) flush(id, link);
}

void CoordinatorServer::Loop::receive(LinkId id, Link& link) {
  const ssize_t got = ::recv(link.fd.get(), buffer_.get(), buffer_size, MSG_DONTWAIT);
  if (got < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return;
    return lose(id, link, std::generic_category().message(errno));
  }
  if (got == 0) return lose(id, link, "connection closed");
  stats_.bytes_in += static_cast<std::size_t>(got);
  if (link.state == Link::State::closing) return;  // nobody wants to know any more
  take_frames(id, link, {buffer_.get(), static_cast<std::size_t>(got)});
}

void CoordinatorServer::Loop::take_frames(LinkId id, Link& link, std::string_view bytes) {
  const bool gathered = !link.in.empty();
  if (gathered) {
    link.in.append(bytes);
    bytes = link.in;
  }
  while (link.state == Link::State::new_here || link.state == Link::State::joined) {
    FrameOpener::Frame frame;
    const auto longest = link.state == Link::State::joined ? most_in_frame : most_before_join;
    const auto status = link.opener.next(bytes, frame, longest);
    if (status == FrameOpener::Status::too_long) return cut_off(id, link, "a message is longer than any may be");
    if (status == FrameOpener::Status::wrong_tag) {
      return cut_off(id, link, "a message was changed on its way or is not from whom it claims to be");
    }
    if (status == FrameOpener::Status::incomplete) break;
    ++stats_.messages_in;
    on_frame(id, link, frame);
    bytes.remove_prefix(frame.size);
  }
  const bool over = link.state != Link::State::new_here && link.state != Link::State::joined;
  if (bytes.empty() || over) {
    empty_buffer(link.in);
  } else if (gathered) {
    link.in.erase(0, link.in.size() - bytes.size());
  } else {
    link.in.assign(bytes);
  }
}

void CoordinatorServer::Loop::on_frame(LinkId id, Link& link, const FrameOpener::Frame& frame) {
  const auto message = decode_from_agent(frame.type, frame.payload);
  if (!message) return cut_off(id, link, message.error().message);
  if (link.state == Link::State::joined) {
    link.job->coordinator.receive(id, *message, now());
    return carry_out(link.job->coordinator);
  }
  const auto* join = std::get_if<Join>(&*message);
  if (join == nullptr) return cut_off(id, link, concat("its first message is not JOIN but ", type_name(frame.type)));
  on_join(id, link, *join);
}

void CoordinatorServer::Loop::on_join(LinkId id, Link& link, const Join& join) {
  const auto local = local_socket_address(link.fd.get());
  const auto reached = local ? IpAddress::of(local->storage) : std::nullopt;
  if (options_.many_jobs) {
    auto options = options_.coordinator;
    options.job_id = join.job_id;
    link.job = &jobs_.try_emplace(join.job_id, std::move(options)).first->second;
  } else {
    link.job = &jobs_.begin()->second;
  }
  link.state = Link::State::joined;
  --new_links_;
  ++link.job->links;
  ++stats_.joined;
  stats_.peak_agents = std::max<std::uint64_t>(stats_.peak_agents, links_.size() - new_links_);
  link.job->coordinator.join(id, join, {link.address, reached.value_or(IpAddress())}, now());
  carry_out(link.job->coordinator);
}

void CoordinatorServer::Loop::carry_out(Coordinator& coordinator) {
  for (auto& output : coordinator.take_outputs()) {
    const auto found = links_.find(output.link);
    if (found == links_.end()) continue;
    if (output.message) {
      send(output.link, found->second, std::move(*output.message));
    } else {
      hang_up(output.link, found->second);
    }
  }
}

void CoordinatorServer::Loop::send(LinkId id, Link& link, FromCoordinator message) {
  if (link.state != Link::State::joined) return;
  auto type = encode(message, payload_);
  if (payload_.size() > most_in_frame) {
    if (!shorten(message, most_in_frame)) return lose(id, link, "a message to it is longer than any may be");
    type = encode(message, payload_);
  }
  if (link.out.size() - link.out_begin > most_unsent) return cut_off(id, link, "it does not read what it is told");
  link.sealer.seal(type, payload_, link.out);
  ++stats_.messages_out;
  if (!std::exchange(link.to_be_flushed, true)) to_flush_.push_back(id);
}

void CoordinatorServer::Loop::flush(LinkId id, Link& link) {
  if (link.state == Link::State::gone) return;
  while (link.out_begin < link.out.size()) {
    const ssize_t sent = ::send(link.fd.get(), link.out.data() + link.out_begin, link.out.size() - link.out_begin,
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (sent < 0) return lose(id, link, std::generic_category().message(errno));
    link.out_begin += static_cast<std::size_t>(sent);
    stats_.bytes_out += static_cast<std::size_t>(sent);
  }
  const bool all = link.out_begin == link.out.size();
  if (all) {
    empty_buffer(link.out);
    link.out_begin = 0;
  } else if (link.out_begin > link.out.size() / 2) {
    link.out.erase(0, link.out_begin);
    link.out_begin = 0;
  }
  if (link.watched_for_out == all) {
    link.watched_for_out = !all;
    const std::uint32_t events = all ? std::uint32_t{EPOLLIN} : std::uint32_t{EPOLLIN} | EPOLLOUT;
    if (!thread_.watch(EPOLL_CTL_MOD, link.fd.get(), events, token_of(id)))
      return lose(id, link, "it cannot be watched");
  }
  // Closed with input unread, the system would tell the other side that all is lost, also what it has not read yet: the
  // end is said, and its end waited for.
  if (all && link.state == Link::State::closing && !std::exchange(link.said_end, true)) {
    ::shutdown(link.fd.get(), SHUT_WR);
  }
}

void CoordinatorServer::Loop::hang_up(LinkId id, Link& link) {
  if (link.state == Link::State::gone || link.state == Link::State::closing) return;
  if (link.state == Link::State::new_here) --new_links_;
  link.state = Link::State::closing;
  to_leave_by_.emplace_back(now() + time_to_hang_up, id);
  if (!std::exchange(link.to_be_flushed, true)) to_flush_.push_back(id);
}

void CoordinatorServer::Loop::cut_off(LinkId id, Link& link, const std::string& why) {
  notice(++stats_.cut_off, concat("the connection of the agent on ", link.address.text(), " was cut off: ", why));
  lose(id, link, why);
}

void CoordinatorServer::Loop::lose(LinkId id, Link& link, std::string how) {
  if (link.state == Link::State::gone) return;
  if (link.state == Link::State::new_here) --new_links_;
  // Whom the coordinator has dismissed it need not be told of.
  if (link.state == Link::State::joined) link.how_lost = std::move(how);
  else link.how_lost.clear();
  link.state = Link::State::gone;
  gone_.push_back(id);
}

void CoordinatorServer::Loop::forget(LinkId id) {
  const auto found = links_.find(id);
  Job* const job = found->second.job;
  const std::string how = std::move(found->second.how_lost);
  thread_.forget(found->second.fd.get());
  ::shutdown(found->second.fd.get(), SHUT_RDWR);
  links_.erase(found);
  if (job == nullptr) return;
  --job->links;
  if (!how.empty()) {
    job->coordinator.lost(id, how, now());
    carry_out(job->coordinator);
  }
  if (job->links == 0) forget_jobs();
}

/// Those of many jobs that nobody is there for, nor expected any more.
void CoordinatorServer::Loop::forget_jobs() {
  if (!options_.many_jobs) return;
  std::erase_if(jobs_, [](const auto& entry) {
    return entry.second.links == 0 && !entry.second.coordinator.waits_for_latecomers();
  });
}

}  // namespace ddrun::rendezvous
