#include "tcp/watch.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "call_words.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::collectives {

TcpWatch::TcpWatch(int rank, int size)
    : rank_(rank), size_(size), halves_(static_cast<std::size_t>(size)), left_(static_cast<std::size_t>(size)) {}

void TcpWatch::begin(const Call& call, std::uint64_t number) {
  call_ = call;
  number_ = number;
  told_ = false;
}

bool TcpWatch::can_hear(const TcpLinks& links, int peer) const { return links.to(peer, 0) >= 0 && !has_left(peer); }

Result<void> TcpWatch::hear(const TcpLinks& links, int peer) {
  Half& half = halves_[static_cast<std::size_t>(peer)];
  while (can_hear(links, peer)) {
    const ssize_t got =
        recv(links.to(peer, 0), half.bytes.data() + half.have, half.bytes.size() - half.have, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) break;
    if (got <= 0) {
      left_[static_cast<std::size_t>(peer)] = 1;
      return fail(Errc::connection_lost, concat("rank ", peer, " is gone"));
    }
    half.have += static_cast<std::size_t>(got);
    if (half.have < half.bytes.size()) continue;
    half.have = 0;
    Notice notice;
    std::memcpy(&notice, half.bytes.data(), sizeof(notice));
    if (notice.call == kLeaving) left_[static_cast<std::size_t>(peer)] = 1;
    else if (peer == next()) next_says_ = notice;
  }
  return peer == next() ? compare() : Result<void>();
}

/// The next rank may have said it before this one came to that call.
Result<void> TcpWatch::compare() const {
  if (next_says_.call != number_ || number_ == 0) return {};
  if (next_says_.kind == kind_of(call_) && next_says_.count == call_.count) return {};
  return different_calls(next(), static_cast<std::uint32_t>(next_says_.kind), next_says_.count, rank_, call_);
}

void TcpWatch::tell_call(const TcpLinks& links) {
  if (told_) return;
  told_ = true;
  tell(links.from((rank_ + size_ - 1) % size_, 0), {number_, kind_of(call_), call_.count});
}

void TcpWatch::tell_leaving(const TcpLinks& links, int size) {
  for (int peer = 0; peer < size; ++peer) tell(links.from(peer, 0), {kLeaving, 0, 0});
}

/// Notices are so few and small that there is always room for one.
void TcpWatch::tell(int fd, const Notice& notice) {
  if (fd >= 0) (void)!send(fd, &notice, sizeof(notice), MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace ddrun::collectives
