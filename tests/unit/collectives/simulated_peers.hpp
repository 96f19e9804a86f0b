#pragma once

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/text.hpp"
#include "tcp/peers.hpp"

namespace ddrun::test {

/// Messages on their way between simulated ranks, in memory.
class Mailboxes {
 public:
  void put(int from, int to, const std::byte* data, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    boxes_[{from, to}].emplace_back(data, data + bytes);
    ++messages_;
    came_.notify_all();
  }
  /// Fails after a while without a message.
  Result<std::vector<std::byte>> take(int from, int to) {
    std::unique_lock lock(mutex_);
    auto& box = boxes_[{from, to}];
    if (!came_.wait_for(lock, std::chrono::seconds(20), [&] { return !box.empty(); })) {
      return fail(Errc::timeout, concat("rank ", from, " sent rank ", to, " nothing"));
    }
    std::vector<std::byte> message = std::move(box.front());
    box.pop_front();
    return message;
  }
  /// Messages that nobody has taken.
  [[nodiscard]] std::size_t left() const {
    std::size_t left = 0;
    for (const auto& [who, box] : boxes_) left += box.size();
    return left;
  }
  [[nodiscard]] std::size_t messages() const { return messages_; }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> boxes_;
  std::size_t messages_ = 0;
};

/// A rank without a network: its messages are hurled about in memory, in pieces of odd sizes where somebody takes them.
class SimulatedPeers final : public collectives::Peers {
 public:
  SimulatedPeers(int rank, int size, Mailboxes& boxes) : rank_(rank), size_(size), boxes_(boxes) {}

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  [[nodiscard]] Result<void> exchange(const collectives::Outgoing& out, const collectives::Incoming& in) override {
    if (out.to == rank_ || in.from == rank_) return fail(Errc::protocol, "a rank has nothing to tell itself");
    if (out.to != collectives::no_peer) boxes_.put(rank_, out.to, out.data, out.bytes);
    if (in.from == collectives::no_peer) return {};
    auto message = boxes_.take(in.from, rank_);
    if (!message) return tl::unexpected(message.error());
    if (message->size() != in.bytes) {
      return fail(Errc::protocol, concat("rank ", rank_, " wants ", in.bytes, " bytes of rank ", in.from,
                                         ", which sent ", message->size()));
    }
    if (in.arrival == nullptr) {
      if (in.bytes > 0) std::memcpy(in.data, message->data(), in.bytes);
      return {};
    }
    // The last piece first: an order is not promised.
    const std::size_t first = in.bytes / in.element * 2 / 3 * in.element;
    if (first < in.bytes) in.arrival->take(first, message->data() + first, in.bytes - first);
    if (first > 0) in.arrival->take(0, message->data(), first);
    return {};
  }

 private:
  int rank_;
  int size_;
  Mailboxes& boxes_;
};

/// Runs `body` once per simulated rank, each in a thread; the problems in words, by rank.
inline std::vector<std::string> run_simulated(int size, Mailboxes& boxes,
                                              const std::function<std::string(collectives::Peers&)>& body) {
  std::vector<std::string> problems(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      SimulatedPeers peers(rank, size, boxes);
      problems[static_cast<std::size_t>(rank)] = body(peers);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return problems;
}

}  // namespace ddrun::test
