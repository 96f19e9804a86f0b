#include "shm/peer_watch.hpp"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "ddrun/base/quiet_thread.hpp"
#include "ddrun/base/text.hpp"
#include "shm/gate.hpp"

namespace ddrun::collectives {

Result<void> PeerWatch::start(Control& control, const std::vector<Peer>& peers) {
  for (const Peer& peer : peers) {
    if (peer.pid == getpid()) continue;
    UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)));
    if (!pidfd) return fail_errno(Errc::unavailable, concat("cannot watch rank ", peer.rank, " (pidfd_open)"), errno);
    ranks_.push_back(peer.rank);
    pidfds_.push_back(std::move(pidfd));
  }
  if (pidfds_.empty()) return {};
  auto stop = make_pipe();
  if (!stop) return tl::unexpected(stop.error());
  stop_ = std::move(*stop);
  auto thread = start_quiet_thread("peer-watch", [this, &control] { run(control); });
  if (!thread) return tl::unexpected(thread.error());
  thread_ = std::move(*thread);
  return {};
}

PeerWatch::~PeerWatch() {
  if (!thread_.joinable()) return;
  stop_.write.reset();
  thread_.join();
}

void PeerWatch::run(Control& control) {
  std::vector<pollfd> watched{{stop_.read.get(), POLLIN, 0}};
  for (const UniqueFd& pidfd : pidfds_) watched.push_back({pidfd.get(), POLLIN, 0});
  while (poll(watched.data(), watched.size(), -1) < 0 && errno == EINTR) {
  }
  if (watched[0].revents != 0) return;
  for (std::size_t i = 1; i < watched.size(); ++i) {
    if (watched[i].revents != 0) return report_lost(control, ranks_[i - 1]);
  }
}

}  // namespace ddrun::collectives
