#include "tcp/transfer.hpp"

#include <sched.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "ddrun/base/text.hpp"
#include "describe.hpp"

namespace ddrun::collectives {

namespace {

using namespace std::chrono_literals;

/// What is received for an Arrival at a time: small enough to be still in the cache then.
constexpr std::size_t taken_at_once = 128 << 10;
/// Falling asleep and being woken takes some microseconds; who is about to come is waited for awake.
constexpr auto spin_time = 50us;
/// Who has waited this long looks whether something is wrong.
constexpr auto long_wait = 100ms;

}  // namespace

bool TcpTransfer::Way::done(std::size_t stream) const {
  return stripes[stream].done() && (stream > 0 || header_left == 0);
}

bool TcpTransfer::Way::done() const {
  if (header_left > 0) return false;
  return std::all_of(stripes.begin(), stripes.end(), [](const Stripe& stripe) { return stripe.done(); });
}

TcpTransfer::TcpTransfer(const Group& group, TcpLinks links, TransferOptions options)
    : rank_(group.rank),
      size_(group.size),
      options_(options),
      links_(std::move(links)),
      watch_(group.rank, group.size),
      told_(index_of(group.size)),
      heard_(index_of(group.size)),
      arrived_(static_cast<std::size_t>(options.streams)) {}

void TcpTransfer::begin(const Call& call, Deadline deadline) {
  call_ = call;
  deadline_ = deadline;
  ++calls_;
  mine_ = {kind_of(call), call.count};
  watch_.begin(call, calls_);
}

void TcpTransfer::leave() {
  // Also those that no rank has answered yet.
  if (size_ > 1) (void)links_.answer();
  TcpWatch::tell_leaving(links_, size_);
  // What is closed with something unread resets the connection, and with it what has been sent.
  for (int peer = 0; peer < size_; ++peer) {
    if (links_.to(peer, 0) >= 0) (void)watch_.hear(links_, peer);
  }
  close();
}

Result<void> TcpTransfer::look_at_neighbour() {
  if (auto heard = watch_.hear(links_, watch_.next()); !heard) return heard;
  return watch_.has_left(watch_.next()) ? lost(watch_.next()) : Result<void>();
}

void TcpTransfer::start(Way& way, int peer, std::size_t bytes, std::vector<std::uint64_t>& last_call) const {
  way.peer = peer;
  way.header_left = 0;
  way.stripes.clear();
  if (peer == no_peer) return;
  if (last_call[index_of(peer)] != calls_) way.header_left = sizeof(Header);
  last_call[index_of(peer)] = calls_;
  const int streams = streams_for(bytes, options_.streams);
  for (int stream = 0; stream < streams; ++stream) way.stripes.emplace_back(bytes, stream, streams);
}

Result<void> TcpTransfer::exchange(const Outgoing& out, const Incoming& in) {
  start(out_, out.to, out.bytes, told_);
  start(in_, in.from, in.bytes, heard_);
  for (Arrived& arrived : arrived_) arrived.pending = 0;
  if (out.to != no_peer) {
    if (auto called = links_.call(out.to, static_cast<int>(out_.stripes.size()), deadline_); !called) {
      // At the start it was listening.
      const bool refused = called.error().cause == std::errc::connection_refused;
      return refused ? lost(out.to) : called;
    }
  }
  Deadline awake_until{};
  while (true) {
    bool progress = false;
    for (std::size_t stream = 0; stream < in_.stripes.size(); ++stream) {
      if (in_.done(stream) || links_.from(in.from, static_cast<int>(stream)) < 0) continue;
      if (auto done = receive_some(in, stream, progress); !done) return done;
    }
    for (std::size_t stream = 0; stream < out_.stripes.size(); ++stream) {
      if (out_.done(stream)) continue;
      if (auto done = send_some(out, stream, progress); !done) return done;
    }
    if (out_.done() && in_.done()) return {};
    if (progress) {
      awake_until = {};
      continue;
    }
    const auto now = Clock::now();
    if (awake_until == Deadline{}) {
      awake_until = options_.spin ? now + spin_time : now;
      next_look_ = now + long_wait;
    }
    if (now < awake_until) {
      // Who is waited for may be waiting for this processor.
      sched_yield();
      continue;
    }
    if (auto waited = wait(); !waited) return waited;
  }
}

Result<void> TcpTransfer::send_some(const Outgoing& out, std::size_t stream, bool& progress) {
  Stripe& stripe = out_.stripes[stream];
  std::size_t& header_left = out_.header_left;
  const std::size_t header = stream == 0 ? header_left : 0;
  const int fd = links_.to(out.to, static_cast<int>(stream));
  // Only sendmsg() takes MSG_NOSIGNAL and several places; it changes nothing at either.
  std::array<iovec, 2> from{{{reinterpret_cast<std::byte*>(&mine_) + sizeof(Header) - header, header},
                             {const_cast<std::byte*>(out.data) + stripe.offset(), stripe.left()}}};
  msghdr message{};
  message.msg_iov = from.data();
  message.msg_iovlen = from.size();
  const ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
  if (sent < 0) {
    if (errno == EAGAIN || errno == EINTR) return {};
    return lost(out.to);
  }
  progress = true;
  const std::size_t of_header = std::min(static_cast<std::size_t>(sent), header);
  if (stream == 0) header_left -= of_header;
  stripe.advance(static_cast<std::size_t>(sent) - of_header);
  return {};
}

Result<void> TcpTransfer::receive_some(const Incoming& in, std::size_t stream, bool& progress) {
  Stripe& stripe = in_.stripes[stream];
  std::size_t& header_left = in_.header_left;
  const std::size_t header = stream == 0 ? header_left : 0;
  std::byte* target = nullptr;
  std::size_t room = stripe.left();
  if (in.arrival == nullptr) {
    target = in.data + stripe.offset();
  } else {
    Arrived& arrived = arrived_[stream];
    if (!arrived.data) arrived.data = std::make_unique<std::byte[]>(taken_at_once);
    target = arrived.data.get() + arrived.pending;
    room = std::min(room, taken_at_once) - arrived.pending;
  }
  std::array<iovec, 2> into{
      {{reinterpret_cast<std::byte*>(&theirs_) + sizeof(Header) - header, header}, {target, room}}};
  msghdr message{};
  message.msg_iov = into.data();
  message.msg_iovlen = into.size();
  const ssize_t got = recvmsg(links_.from(in.from, static_cast<int>(stream)), &message, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return {};
  if (got <= 0) return lost(in.from);
  progress = true;
  const std::size_t of_header = std::min(static_cast<std::size_t>(got), header);
  if (of_header > 0) {
    header_left -= of_header;
    if (header_left == 0 && (theirs_.kind != mine_.kind || theirs_.count != mine_.count)) {
      return different_calls(in.from, static_cast<std::uint32_t>(theirs_.kind), theirs_.count, rank_, call_);
    }
  }
  const std::size_t data = static_cast<std::size_t>(got) - of_header;
  if (in.arrival == nullptr) stripe.advance(data);
  else stripe.advance(hand_over(in, stream, data));
  return {};
}

/// Returns how many bytes the Arrival has got; the rest waits for the rest of its element. The stripe's offset stays
/// that of the first byte that waits.
std::size_t TcpTransfer::hand_over(const Incoming& in, std::size_t stream, std::size_t got) {
  Arrived& arrived = arrived_[stream];
  const std::size_t have = arrived.pending + got;
  arrived.pending = have % in.element;
  const std::size_t whole = have - arrived.pending;
  if (whole > 0) in.arrival->take(in_.stripes[stream].offset(), arrived.data.get(), whole);
  std::memmove(arrived.data.get(), arrived.data.get() + whole, arrived.pending);
  return whole;
}

Result<void> TcpTransfer::wait() {
  polled_.clear();
  bool callers = false;
  for (std::size_t stream = 0; stream < in_.stripes.size(); ++stream) {
    if (in_.done(stream)) continue;
    const int fd = links_.from(in_.peer, static_cast<int>(stream));
    if (fd >= 0) polled_.push_back({fd, POLLIN, 0});
    else callers = true;
  }
  const std::size_t incoming = polled_.size();
  for (std::size_t stream = 0; stream < out_.stripes.size(); ++stream) {
    if (!out_.done(stream)) polled_.push_back({links_.to(out_.peer, static_cast<int>(stream)), POLLOUT, 0});
  }
  const int next = watch_.next();
  const bool hears_next = watch_.can_hear(links_, next);
  const bool hears_sender = in_.peer != no_peer && in_.peer != next && watch_.can_hear(links_, in_.peer);
  if (hears_next) polled_.push_back({links_.to(next, 0), POLLIN, 0});
  if (hears_sender) polled_.push_back({links_.to(in_.peer, 0), POLLIN, 0});
  if (callers) links_.poll_for_callers(polled_);

  poll(polled_.data(), polled_.size(), poll_timeout(std::min(deadline_, next_look_)));
  const bool comes = std::any_of(polled_.begin(), polled_.begin() + static_cast<std::ptrdiff_t>(incoming),
                                 [](const pollfd& one) { return one.revents != 0; });
  if (callers) {
    if (auto answered = links_.answer(); !answered) return answered;
  }
  if (hears_next) {
    if (auto heard = watch_.hear(links_, next); !heard) return heard;
  }
  if (hears_sender && !watch_.hear(links_, in_.peer)) {
    if (auto there = sender_may_be_gone(); !there) return there;
  }
  const auto now = Clock::now();
  if (now >= deadline_) {
    const bool receives = !in_.done();
    return fail(Errc::timeout, concat("rank ", receives ? in_.peer : out_.peer, receives ? " sent" : " took",
                                      " nothing in time (it may itself be waiting for another)"));
  }
  // Nothing is said to a sender whose data is there: it may have left since, and its system would answer with a reset,
  // which throws away what has come and was not read yet.
  return now >= next_look_ && !comes ? waited_long() : Result<void>();
}

/// A rank may make another call, or may have died before it called this rank, so that no link shows it.
Result<void> TcpTransfer::waited_long() {
  watch_.tell_call(links_);
  next_look_ = Clock::now() + long_wait;
  if (in_.peer == no_peer || in_.done() || links_.from(in_.peer, 0) >= 0) return {};
  // The end of this rank's own link to it will tell.
  if (!watch_.has_left(in_.peer) && links_.call(in_.peer, 1, deadline_)) return {};
  return sender_may_be_gone();
}

/// A rank that has done its part may leave before this one has answered its call: what it sent is still there then.
Result<void> TcpTransfer::sender_may_be_gone() {
  if (auto answered = links_.answer(); !answered) return answered;
  return links_.from(in_.peer, 0) >= 0 ? Result<void>() : lost(in_.peer);
}

tl::unexpected<Error> TcpTransfer::lost(int peer) const {
  return fail(Errc::connection_lost, concat("rank ", peer, " is gone"));
}

}  // namespace ddrun::collectives
