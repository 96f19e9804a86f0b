#include "tcp_communicator.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "call_words.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/collectives/reduction.hpp"
#include "ddrun/store/store.hpp"

namespace ddrun::collectives {

namespace {

/// Received data is reduced while it is still in the cache.
constexpr std::size_t kPiece = 128 << 10;
constexpr std::size_t kPage = 4096;

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
struct TcpCommunicator::Step {
  const Call* call = nullptr;
  std::size_t header_send_left = 0;  ///< bytes of `sent_`, before the data
  std::size_t header_receive_left = 0;
  const std::byte* send = nullptr;
  std::size_t send_left = 0;          ///< bytes
  std::byte* to = nullptr;            ///< where the next received element, or what becomes of it, belongs
  std::size_t receive_left = 0;       ///< bytes
  const std::byte* addend = nullptr;  ///< what each received element is reduced with; null: stored as it comes
  std::size_t element = 0;            ///< bytes of a received element
  bool numbers = false;               ///< received elements are of the accumulator's type
  bool last = false;                  ///< what is reduced now is finished
  std::size_t pending = 0;            ///< bytes in `arrived_` that are no whole element yet
};

Result<std::unique_ptr<Communicator>> TcpCommunicator::connect(const Group& group, std::size_t buffer_bytes,
                                                               Deadline deadline) {
  RingLinks links;
  if (group.size > 1) {
    auto connected = connect_ring(group, deadline);
    if (!connected) return tl::unexpected(connected.error());
    links = std::move(*connected);
  }
  std::unique_ptr<TcpCommunicator> made(new TcpCommunicator(group, std::move(links), buffer_bytes));
  if (auto got = made->buffers_.allocate(made->distance_, 2); !got) return tl::unexpected(got.error());
  return made;
}

TcpCommunicator::TcpCommunicator(Group group, RingLinks links, std::size_t buffer_bytes)
    : Communicator(group.rank, group.size),
      group_(std::move(group)),
      links_(std::move(links)),
      buffer_bytes_(buffer_bytes),
      distance_((buffer_bytes + kPage - 1) / kPage * kPage),
      arrived_(kPiece) {}

std::string TcpCommunicator::lacks(Collective collective, DataType, ReduceOp, bool) const {
  if (collective == Collective::barrier || collective == Collective::all_reduce) return {};
  return concat("tcp has no ", name_of(collective));
}

Result<void> TcpCommunicator::run(const Call& call, Deadline deadline) {
  if (group_.size == 1) {
    if (call.in != call.out) std::memcpy(call.out, call.in, call.bytes());
    return {};
  }
  if (auto done = reduce_scatter(call, deadline); !done) return done;
  return all_gather(call, deadline);
}

/// Each part is reduced on its way round: what a rank hands on first is its own input, then what it has reduced.
Result<void> TcpCommunicator::reduce_scatter(const Call& call, Deadline deadline) {
  const int n = group_.size;
  const std::size_t element = size_of(call.type);
  const std::size_t number = size_of(accumulator_type(call.type));
  const bool apart = number != element;
  if (apart) {
    numbers_.resize(kPiece / element * number);
    const std::size_t most = call.count / static_cast<std::size_t>(n) + 1;
    for (auto& partial : partial_) partial.resize(n > 2 ? most * number : 0);
  }
  sent_ = {kind_of(call), call.count};
  for (int i = 0; i < n - 1; ++i) {
    const auto [send_begin, send_end] = part_of(call.count, group_.rank - i, n);
    const auto [begin, end] = part_of(call.count, group_.rank - i - 1, n);
    Step step;
    step.call = &call;
    if (i == 0) step.header_send_left = step.header_receive_left = sizeof(Header);
    step.numbers = apart && i > 0;
    step.last = i == n - 2;
    step.element = step.numbers ? number : element;
    step.send = i == 0  ? call.in + send_begin * element
                : apart ? partial_[(i - 1) % 2].data()
                        : call.out + send_begin * element;
    step.send_left = (send_end - send_begin) * step.element;
    step.to = apart && !step.last ? partial_[i % 2].data() : call.out + begin * element;
    step.receive_left = (end - begin) * step.element;
    step.addend = call.in + begin * element;
    if (auto done = transfer(step, deadline); !done) return done;
  }
  return {};
}

Result<void> TcpCommunicator::all_gather(const Call& call, Deadline deadline) {
  const int n = group_.size;
  const std::size_t element = size_of(call.type);
  for (int i = 0; i < n - 1; ++i) {
    const auto [send_begin, send_end] = part_of(call.count, group_.rank + 1 - i, n);
    const auto [begin, end] = part_of(call.count, group_.rank - i, n);
    Step step;
    step.call = &call;
    step.element = element;
    step.send = call.out + send_begin * element;
    step.send_left = (send_end - send_begin) * element;
    step.to = call.out + begin * element;
    step.receive_left = (end - begin) * element;
    if (auto done = transfer(step, deadline); !done) return done;
  }
  return {};
}

Result<void> TcpCommunicator::transfer(Step step, Deadline deadline) {
  while (true) {
    const bool sends = step.header_send_left + step.send_left > 0;
    const bool receives = step.header_receive_left + step.receive_left > 0;
    if (!sends && !receives) return {};
    bool progress = false;
    if (receives) {
      if (auto done = receive_some(step, progress); !done) return done;
    }
    if (sends) {
      if (auto done = send_some(step, progress); !done) return done;
    }
    if (progress) continue;
    // A descriptor of -1 is passed over by poll(2).
    std::array<pollfd, 2> both{
        {{receives ? links_.from_previous.get() : -1, POLLIN, 0}, {sends ? links_.to_next.get() : -1, POLLOUT, 0}}};
    if (poll(both.data(), both.size(), poll_timeout(deadline)) == 0 && Clock::now() >= deadline) {
      return fail(Errc::timeout, concat("rank ", receives ? previous() : next(), receives ? " sent" : " took",
                                        " nothing in time (it may itself be waiting for another)"));
    }
  }
}

Result<void> TcpCommunicator::send_some(Step& step, bool& progress) {
  // Only sendmsg() takes MSG_NOSIGNAL and several places; it changes nothing at either.
  std::array<iovec, 2> from{
      {{reinterpret_cast<std::byte*>(&sent_) + sizeof(Header) - step.header_send_left, step.header_send_left},
       {const_cast<std::byte*>(step.send), step.send_left}}};
  msghdr message{};
  message.msg_iov = from.data();
  message.msg_iovlen = from.size();
  const ssize_t sent = sendmsg(links_.to_next.get(), &message, MSG_NOSIGNAL);
  if (sent > 0) {
    const std::size_t of_header = std::min(static_cast<std::size_t>(sent), step.header_send_left);
    step.header_send_left -= of_header;
    step.send += static_cast<std::size_t>(sent) - of_header;
    step.send_left -= static_cast<std::size_t>(sent) - of_header;
    progress = true;
  } else if (sent < 0 && errno != EAGAIN && errno != EINTR) {
    return lost(next());
  }
  return {};
}

Result<void> TcpCommunicator::receive_some(Step& step, bool& progress) {
  std::byte* const target = step.addend == nullptr ? step.to : arrived_.data();
  std::size_t room = step.receive_left;
  if (step.addend != nullptr) room = std::min(room, kPiece - step.pending);
  std::array<iovec, 2> into{
      {{reinterpret_cast<std::byte*>(&received_) + sizeof(Header) - step.header_receive_left, step.header_receive_left},
       {target + step.pending, room}}};
  msghdr message{};
  message.msg_iov = into.data();
  message.msg_iovlen = into.size();
  const ssize_t got = recvmsg(links_.from_previous.get(), &message, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return {};
  if (got <= 0) return lost(previous());
  progress = true;
  const std::size_t of_header = std::min(static_cast<std::size_t>(got), step.header_receive_left);
  step.header_receive_left -= of_header;
  if (of_header > 0 && step.header_receive_left == 0) {
    if (auto same = check_header(*step.call); !same) return same;
  }
  step.receive_left -= static_cast<std::size_t>(got) - of_header;
  step.pending += static_cast<std::size_t>(got) - of_header;
  const std::size_t whole = step.pending / step.element;
  if (step.addend != nullptr) {
    take(step, whole);
    std::memmove(arrived_.data(), arrived_.data() + whole * step.element, step.pending % step.element);
  } else {
    step.to += whole * step.element;
  }
  step.pending %= step.element;
  return {};
}

/// Reduces what has arrived with this rank's own and puts it where it belongs.
void TcpCommunicator::take(Step& step, std::size_t count) {
  const Call& call = *step.call;
  const Kernels& loops = kernels(call.type, call.op);
  const std::size_t element = size_of(call.type);
  const std::size_t number = size_of(accumulator_type(call.type));
  if (number == element) {
    // An average is a sum until the last step.
    const Kernels& on_the_way = kernels(call.type, call.op == ReduceOp::avg ? ReduceOp::sum : call.op);
    const std::array<const void*, 2> in{arrived_.data(), step.addend};
    void* const out = step.to;
    (step.last ? loops : on_the_way).reduce(in.data(), 2, &out, 1, 0, count, Stores::normal, group_.size);
    step.to += count * element;
  } else {
    std::byte* const numbers = step.numbers ? arrived_.data() : numbers_.data();
    if (!step.numbers) loops.load(numbers, arrived_.data(), count);
    loops.accumulate(numbers, step.addend, count);
    if (step.last) loops.finish(step.to, numbers, count, group_.size);
    else std::memcpy(step.to, numbers, count * number);
    step.to += count * (step.last ? element : number);
  }
  step.addend += count * element;
}

Result<void> TcpCommunicator::check_header(const Call& call) {
  if (received_.kind == sent_.kind && received_.count == sent_.count) return {};
  const auto mine =
      different_calls(previous(), static_cast<std::uint32_t>(received_.kind), received_.count, group_.rank, call);
  return tl::unexpected(first_failure(mine.value()));
}

/// A rank sees only its neighbours. Whoever fails says so in the store before it leaves the ring itself, so that the
/// others, who then see their own neighbours leave, know what came first.
Error TcpCommunicator::first_failure(Error mine) {
  const std::string words = concat(static_cast<int>(mine.code), ' ', mine.message);
  const auto first =
      group_.store->compare_set(group_.prefix + "failed", "", words, Clock::now() + std::chrono::seconds(2));
  if (!first) return mine;
  const auto blank = first->find(' ');
  const auto code = parse_integer(std::string_view(*first).substr(0, blank), 0, static_cast<int>(Errc::cancelled));
  if (!code || blank == std::string::npos) return mine;
  mine.code = static_cast<Errc>(*code);
  mine.message = first->substr(blank + 1);
  return mine;
}

tl::unexpected<Error> TcpCommunicator::lost(int peer) {
  const auto mine = fail(Errc::connection_lost, concat("rank ", peer, " is gone"));
  return tl::unexpected(first_failure(mine.value()));
}

}  // namespace ddrun::collectives
