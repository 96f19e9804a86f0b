#include "tcp_all_reduce.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "ddrun/base/text.hpp"
#include "ddrun/store/store.hpp"
#include "sum_kernels.hpp"

namespace ddrun::collectives {

namespace {

/// Received data is added while it is still in the cache.
constexpr std::size_t kPiece = (128 << 10) / sizeof(float);

/// Element range of part `index` of `parts`.
std::pair<std::size_t, std::size_t> part_of(std::size_t count, int index, int parts) {
  const auto n = static_cast<std::size_t>(parts);
  const auto i = static_cast<std::size_t>(((index % parts) + parts) % parts);
  const std::size_t low = count / n;
  const std::size_t extra = count % n;
  const std::size_t begin = i * low + std::min(i, extra);
  return {begin, begin + low + (i < extra ? 1 : 0)};
}

}  // namespace

/// One move of the ring, both ways at once.
struct TcpAllReduce::Step {
  const std::byte* send = nullptr;
  std::size_t send_left = 0;      ///< bytes
  float* to = nullptr;            ///< where the next received element belongs
  std::size_t receive_left = 0;   ///< bytes
  const float* addend = nullptr;  ///< what is added to each received element; null: stored as it comes
  std::size_t pending = 0;        ///< bytes in `arrived_` that are no whole element yet, or in front of `to`
};

Result<std::unique_ptr<AllReduce>> TcpAllReduce::connect(const Group& group, std::size_t buffer_count,
                                                         Deadline deadline) {
  RingLinks links;
  if (group.size > 1) {
    auto connected = connect_ring(group, deadline);
    if (!connected) return tl::unexpected(connected.error());
    links = std::move(*connected);
  }
  std::unique_ptr<TcpAllReduce> made(new TcpAllReduce(group, std::move(links), buffer_count));
  if (auto got = made->buffers_.allocate(2 * buffer_count); !got) return tl::unexpected(got.error());
  return made;
}

TcpAllReduce::TcpAllReduce(Group group, RingLinks links, std::size_t buffer_count)
    : group_(std::move(group)), links_(std::move(links)), buffer_count_(buffer_count), arrived_(kPiece) {}

Result<void> TcpAllReduce::sum(std::span<const float> in, std::span<float> out, Deadline deadline) {
  if (in.size() != out.size()) return fail(Errc::invalid_argument, "input and output differ in size");
  if (state_) state_ = run(in, out, deadline);
  return state_;
}

Result<void> TcpAllReduce::run(std::span<const float> in, std::span<float> out, Deadline deadline) {
  const int n = group_.size;
  if (n == 1) {
    if (in.data() != out.data()) std::copy(in.begin(), in.end(), out.begin());
    return {};
  }
  const std::size_t count = in.size();
  const auto step = [&](const float* source, int sent, int received, const float* addend) {
    const auto [send_begin, send_end] = part_of(count, sent, n);
    const auto [begin, end] = part_of(count, received, n);
    Step one;
    one.send = reinterpret_cast<const std::byte*>(source + send_begin);
    one.send_left = (send_end - send_begin) * sizeof(float);
    one.to = out.data() + begin;
    one.receive_left = (end - begin) * sizeof(float);
    one.addend = addend == nullptr ? nullptr : addend + begin;
    return transfer(one, deadline);
  };
  // Each part is added up on its way round: what a rank hands on first is its own input, then what it has summed.
  for (int i = 0; i < n - 1; ++i) {
    const float* const source = i == 0 ? in.data() : out.data();
    if (auto done = step(source, group_.rank - i, group_.rank - i - 1, in.data()); !done) return done;
  }
  for (int i = 0; i < n - 1; ++i) {
    if (auto done = step(out.data(), group_.rank + 1 - i, group_.rank - i, nullptr); !done) return done;
  }
  return {};
}

Result<void> TcpAllReduce::transfer(Step step, Deadline deadline) {
  while (step.send_left > 0 || step.receive_left > 0) {
    bool progress = false;
    if (step.receive_left > 0) {
      if (auto done = receive_some(step, progress); !done) return done;
    }
    if (step.send_left > 0) {
      if (auto done = send_some(step, progress); !done) return done;
    }
    if (progress) continue;
    // A descriptor of -1 is passed over by poll(2).
    std::array<pollfd, 2> both{{{step.receive_left > 0 ? links_.from_previous.get() : -1, POLLIN, 0},
                                {step.send_left > 0 ? links_.to_next.get() : -1, POLLOUT, 0}}};
    if (poll(both.data(), both.size(), poll_timeout(deadline)) == 0 && Clock::now() >= deadline) {
      const int peer = (step.receive_left > 0 ? group_.rank + group_.size - 1 : group_.rank + 1) % group_.size;
      return fail(Errc::timeout, concat("rank ", peer, step.receive_left > 0 ? " sent" : " took",
                                        " nothing in time (it may itself be waiting for another)"));
    }
  }
  return {};
}

Result<void> TcpAllReduce::send_some(Step& step, bool& progress) {
  const ssize_t sent = send(links_.to_next.get(), step.send, step.send_left, MSG_NOSIGNAL);
  if (sent > 0) {
    step.send += sent;
    step.send_left -= static_cast<std::size_t>(sent);
    progress = true;
  } else if (sent < 0 && errno != EAGAIN && errno != EINTR) {
    return lost((group_.rank + 1) % group_.size);
  }
  return {};
}

Result<void> TcpAllReduce::receive_some(Step& step, bool& progress) {
  auto* const scratch = reinterpret_cast<std::byte*>(arrived_.data());
  std::byte* const target = step.addend == nullptr ? reinterpret_cast<std::byte*>(step.to) : scratch;
  const std::size_t room =
      step.addend == nullptr ? step.receive_left : std::min(step.receive_left, kPiece * sizeof(float) - step.pending);
  const std::size_t skip = step.pending;
  const ssize_t got = recv(links_.from_previous.get(), target + skip, room, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return {};
  if (got <= 0) return lost((group_.rank + group_.size - 1) % group_.size);
  progress = true;
  step.receive_left -= static_cast<std::size_t>(got);
  step.pending += static_cast<std::size_t>(got);
  const std::size_t whole = step.pending / sizeof(float);
  if (step.addend != nullptr) {
    add(step.to, step.addend, arrived_.data(), whole);
    step.addend += whole;
    std::memmove(scratch, scratch + whole * sizeof(float), step.pending % sizeof(float));
  }
  step.to += whole;
  step.pending %= sizeof(float);
  return {};
}

tl::unexpected<Error> TcpAllReduce::lost(int peer) {
  // A rank sees only its neighbours. Whoever notices a loss says so in the store before it leaves the ring itself,
  // so that the others, who then see their own neighbours leave, name the one that went first.
  const auto first = group_.store->compare_set(group_.prefix + "lost", "", std::to_string(peer),
                                               Clock::now() + std::chrono::seconds(2));
  return fail(Errc::connection_lost, concat("rank ", first ? *first : std::to_string(peer), " is gone"));
}

}  // namespace ddrun::collectives
