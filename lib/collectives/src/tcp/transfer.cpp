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

/// Bytes received at a time for a RecvSink; still in the cache when consumed.
constexpr std::size_t recv_block_bytes = 128 << 10;
/// Sleeping and waking cost some microseconds, so short waits spin.
constexpr auto spin_time = 50us;
/// Interval of checks for lost peers during a long wait.
constexpr auto check_interval = 100ms;

}  // namespace

bool TcpTransfer::Direction::done(std::size_t stream) const {
  return stripes[stream].done() && (stream > 0 || header_left == 0);
}

bool TcpTransfer::Direction::done() const {
  if (header_left > 0) return false;
  return std::all_of(stripes.begin(), stripes.end(), [](const Stripe& stripe) { return stripe.done(); });
}

TcpTransfer::TcpTransfer(const Group& group, TcpLinks links, TransferOptions options)
    : rank_(group.rank),
      size_(group.size),
      options_(options),
      links_(std::move(links)),
      watch_(group.rank, group.size),
      last_call_sent_(index_of(group.size)),
      last_call_received_(index_of(group.size)),
      recv_buffers_(static_cast<std::size_t>(options.streams)) {}

void TcpTransfer::begin(const Call& call, Deadline deadline) {
  call_ = call;
  deadline_ = deadline;
  ++calls_;
  own_header_ = {kind_of(call), call.count};
  watch_.begin(call, calls_);
}

void TcpTransfer::leave() {
  // Includes connections not yet accepted.
  if (size_ > 1) (void)links_.accept_pending();
  TcpWatch::send_leave_notice(links_, size_);
  // Closing a socket with unread data resets the connection, which discards data already sent.
  for (int peer = 0; peer < size_; ++peer) {
    if (links_.to(peer, 0) >= 0) (void)watch_.read_notices(links_, peer);
  }
  close();
}

Result<void> TcpTransfer::check_next_rank() {
  TRY(watch_.read_notices(links_, watch_.next()));
  return watch_.has_left(watch_.next()) ? peer_lost(watch_.next()) : Result<void>();
}

void TcpTransfer::start(Direction& direction, int peer, std::size_t bytes,
                        std::vector<std::uint64_t>& last_call) const {
  direction.peer = peer;
  direction.header_left = 0;
  direction.stripes.clear();
  if (peer == no_peer) return;
  if (last_call[index_of(peer)] != calls_) direction.header_left = sizeof(Header);
  last_call[index_of(peer)] = calls_;
  const int streams = streams_for(bytes, options_.streams);
  for (int stream = 0; stream < streams; ++stream) direction.stripes.emplace_back(bytes, stream, streams);
}

Result<void> TcpTransfer::exchange(const Outgoing& out, const Incoming& in) {
  start(out_, out.to, out.bytes, last_call_sent_);
  start(in_, in.from, in.bytes, last_call_received_);
  for (RecvBuffer& buffer : recv_buffers_) buffer.pending = 0;
  if (out.to != no_peer) {
    if (auto connected = links_.connect(out.to, static_cast<int>(out_.stripes.size()), deadline_); !connected) {
      // The peer listened at the start.
      const bool refused = connected.error().cause == std::errc::connection_refused;
      return refused ? peer_lost(out.to) : connected;
    }
  }
  Deadline spin_until{};
  while (true) {
    bool progress = false;
    for (std::size_t stream = 0; stream < in_.stripes.size(); ++stream) {
      if (in_.done(stream) || links_.from(in.from, static_cast<int>(stream)) < 0) continue;
      TRY(receive_some(in, stream, progress));
    }
    for (std::size_t stream = 0; stream < out_.stripes.size(); ++stream) {
      if (out_.done(stream)) continue;
      TRY(send_some(out, stream, progress));
    }
    if (out_.done() && in_.done()) return {};
    if (progress) {
      spin_until = {};
      continue;
    }
    const auto now = Clock::now();
    if (spin_until == Deadline{}) {
      spin_until = options_.spin ? now + spin_time : now;
      next_check_ = now + check_interval;
    }
    if (now < spin_until) {
      // The peer may need this processor.
      sched_yield();
      continue;
    }
    TRY(wait());
  }
}

Result<void> TcpTransfer::send_some(const Outgoing& out, std::size_t stream, bool& progress) {
  Stripe& stripe = out_.stripes[stream];
  std::size_t& header_left = out_.header_left;
  const std::size_t header = stream == 0 ? header_left : 0;
  const int fd = links_.to(out.to, static_cast<int>(stream));
  // sendmsg() takes MSG_NOSIGNAL and several buffers; it modifies neither.
  std::array<iovec, 2> from{{{reinterpret_cast<std::byte*>(&own_header_) + sizeof(Header) - header, header},
                             {const_cast<std::byte*>(out.data) + stripe.offset(), stripe.left()}}};
  msghdr message{};
  message.msg_iov = from.data();
  message.msg_iovlen = from.size();
  const ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
  if (sent < 0) {
    if (errno == EAGAIN || errno == EINTR) return {};
    return peer_lost(out.to);
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
  if (in.sink == nullptr) {
    target = in.data + stripe.offset();
  } else {
    RecvBuffer& buffer = recv_buffers_[stream];
    if (!buffer.data) buffer.data = std::make_unique<std::byte[]>(recv_block_bytes);
    target = buffer.data.get() + buffer.pending;
    room = std::min(room, recv_block_bytes) - buffer.pending;
  }
  std::array<iovec, 2> into{
      {{reinterpret_cast<std::byte*>(&peer_header_) + sizeof(Header) - header, header}, {target, room}}};
  msghdr message{};
  message.msg_iov = into.data();
  message.msg_iovlen = into.size();
  const ssize_t got = recvmsg(links_.from(in.from, static_cast<int>(stream)), &message, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return {};
  if (got <= 0) return peer_lost(in.from);
  progress = true;
  const std::size_t of_header = std::min(static_cast<std::size_t>(got), header);
  if (of_header > 0) {
    header_left -= of_header;
    if (header_left == 0 && (peer_header_.kind != own_header_.kind || peer_header_.count != own_header_.count)) {
      return call_mismatch(in.from, static_cast<std::uint32_t>(peer_header_.kind), peer_header_.count, rank_, call_);
    }
  }
  const std::size_t data = static_cast<std::size_t>(got) - of_header;
  if (in.sink == nullptr) stripe.advance(data);
  else stripe.advance(deliver(in, stream, data));
  return {};
}

/// Passes whole elements to the sink and returns their bytes; keeps the rest. The stripe's offset stays at the first
/// kept byte.
std::size_t TcpTransfer::deliver(const Incoming& in, std::size_t stream, std::size_t got) {
  RecvBuffer& buffer = recv_buffers_[stream];
  const std::size_t have = buffer.pending + got;
  buffer.pending = have % in.element;
  const std::size_t whole = have - buffer.pending;
  if (whole > 0) in.sink->consume(in_.stripes[stream].offset(), buffer.data.get(), whole);
  std::memmove(buffer.data.get(), buffer.data.get() + whole, buffer.pending);
  return whole;
}

Result<void> TcpTransfer::wait() {
  polled_.clear();
  bool waits_for_peer = false;
  for (std::size_t stream = 0; stream < in_.stripes.size(); ++stream) {
    if (in_.done(stream)) continue;
    const int fd = links_.from(in_.peer, static_cast<int>(stream));
    if (fd >= 0) polled_.push_back({fd, POLLIN, 0});
    else waits_for_peer = true;
  }
  const std::size_t incoming = polled_.size();
  for (std::size_t stream = 0; stream < out_.stripes.size(); ++stream) {
    if (!out_.done(stream)) polled_.push_back({links_.to(out_.peer, static_cast<int>(stream)), POLLOUT, 0});
  }
  const int next = watch_.next();
  const bool polls_next = watch_.can_read(links_, next);
  const bool polls_sender = in_.peer != no_peer && in_.peer != next && watch_.can_read(links_, in_.peer);
  if (polls_next) polled_.push_back({links_.to(next, 0), POLLIN, 0});
  if (polls_sender) polled_.push_back({links_.to(in_.peer, 0), POLLIN, 0});
  if (waits_for_peer) links_.add_poll_fds(polled_);

  poll(polled_.data(), polled_.size(), poll_timeout(std::min(deadline_, next_check_)));
  const bool has_input = std::any_of(polled_.begin(), polled_.begin() + static_cast<std::ptrdiff_t>(incoming),
                                     [](const pollfd& one) { return one.revents != 0; });
  if (waits_for_peer) TRY(links_.accept_pending());
  if (polls_next) TRY(watch_.read_notices(links_, next));
  if (polls_sender && !watch_.read_notices(links_, in_.peer)) TRY(check_sender());
  const auto now = Clock::now();
  if (now >= deadline_) {
    const bool receives = !in_.done();
    return fail(Errc::timeout, concat("rank ", receives ? in_.peer : out_.peer, receives ? " sent" : " took",
                                      " nothing in time (it may itself be waiting for another)"));
  }
  // No notice to a sender whose data has arrived: it may have left, and its reset would discard unread data.
  return now >= next_check_ && !has_input ? check_slow_peer() : Result<void>();
}

/// The peer may make another call, or have exited before it connected.
Result<void> TcpTransfer::check_slow_peer() {
  watch_.send_call_notice(links_);
  next_check_ = Clock::now() + check_interval;
  if (in_.peer == no_peer || in_.done() || links_.from(in_.peer, 0) >= 0) return {};
  // A lost peer closes this rank's own link to it, which is polled.
  if (!watch_.has_left(in_.peer) && links_.connect(in_.peer, 1, deadline_)) return {};
  return check_sender();
}

/// A peer that is done may leave before this rank has accepted its connection; its data is still readable then.
Result<void> TcpTransfer::check_sender() {
  TRY(links_.accept_pending());
  return links_.from(in_.peer, 0) >= 0 ? Result<void>() : peer_lost(in_.peer);
}

tl::unexpected<Error> TcpTransfer::peer_lost(int peer) const {
  return fail(Errc::connection_lost, concat("rank ", peer, " is gone"));
}

}  // namespace ddrun::collectives
