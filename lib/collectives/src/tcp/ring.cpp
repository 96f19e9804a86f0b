#include "tcp/ring.hpp"

#include <algorithm>

#include "copy.hpp"

namespace ddrun::collectives {

Parts::Range Parts::operator[](int index) const {
  const auto n = static_cast<std::size_t>(parts_);
  const auto i = static_cast<std::size_t>(((index % parts_) + parts_) % parts_);
  const std::size_t low = count_ / n;
  const std::size_t extra = count_ % n;
  return {i * low + std::min(i, extra), low + (i < extra ? 1 : 0)};
}

Result<void> ring_reduce_scatter(Peers& peers, Workspace& ws, const Partial& partial, const Parts& parts, int shift,
                                 const std::byte* in, std::byte* finished, std::byte* on_the_way) {
  const int n = peers.size();
  const std::size_t element = partial.element();
  const bool aside = on_the_way == nullptr || partial.apart();
  const std::size_t most = parts.largest() * partial.number();
  // Two in turn: one is sent while the other is being received.
  std::byte* const kept = aside && n > 2 ? ws.mine.at_least(2 * most) : nullptr;
  const std::byte* send = nullptr;
  for (int i = 0; i < n - 1; ++i) {
    const auto sent = parts[peers.rank() - shift + n - 1 - i];
    const auto received = parts[peers.rank() - shift + n - 2 - i];
    const bool first = i == 0;
    const bool last = i == n - 2;
    if (first) send = in + sent.begin * element;
    Passing::Places places{in + received.begin * element, nullptr, !first, last};
    if (last) places.to = finished;
    else places.to = aside ? kept + static_cast<std::size_t>(i % 2) * most : on_the_way + received.begin * element;
    Passing arrival(partial, ws.piece, places);
    const Outgoing out{peers.at(1), send, sent.count * (first ? element : partial.number())};
    const Incoming incoming{peers.at(-1), nullptr, received.count * arrival.arriving(), &arrival, arrival.arriving()};
    if (auto done = peers.exchange(out, incoming); !done) return done;
    send = places.to;
  }
  return {};
}

Result<void> ring_all_gather(Peers& peers, const Parts& parts, int shift, std::byte* out, std::size_t element) {
  for (int i = 0; i < peers.size() - 1; ++i) {
    const auto sent = parts[peers.rank() - shift - i];
    const auto received = parts[peers.rank() - shift - i - 1];
    auto done = peers.exchange({peers.at(1), out + sent.begin * element, sent.count * element},
                               {peers.at(-1), out + received.begin * element, received.count * element});
    if (!done) return done;
  }
  return {};
}

Result<void> all_reduce_by_ring(Peers& peers, Workspace& ws, const Call& call) {
  const Partial partial(call, peers.size());
  const Parts parts(call.count, peers.size());
  // Rank r ends with part r + 1.
  const std::size_t own = parts[peers.rank() + 1].begin * partial.element();
  if (auto done = ring_reduce_scatter(peers, ws, partial, parts, -1, call.in, call.out + own, call.out); !done) {
    return done;
  }
  return ring_all_gather(peers, parts, -1, call.out, partial.element());
}

Result<void> reduce_scatter_by_ring(Peers& peers, Workspace& ws, const Call& call) {
  const Partial partial(call, peers.size());
  const Parts blocks(call.count * static_cast<std::size_t>(peers.size()), peers.size());
  return ring_reduce_scatter(peers, ws, partial, blocks, 0, call.in, call.out, nullptr);
}

Result<void> all_gather_by_ring(Peers& peers, const Call& call) {
  const std::size_t element = size_of(call.type);
  const Parts blocks(call.count * static_cast<std::size_t>(peers.size()), peers.size());
  std::byte* const own = call.out + blocks[peers.rank()].begin * element;
  if (call.in != own) copy_bytes(own, call.in, call.bytes());
  return ring_all_gather(peers, blocks, 0, call.out, element);
}

}  // namespace ddrun::collectives
