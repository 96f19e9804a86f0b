#pragma once

#include <cstddef>

#include "ddrun/base/result.hpp"

namespace ddrun::collectives {

inline constexpr int no_peer = -1;

/// Converts a rank or other number to an index.
[[nodiscard]] constexpr std::size_t index_of(int number) { return static_cast<std::size_t>(number); }

/// Receives a message piece by piece, while it is in the cache.
class RecvSink {
 public:
  RecvSink() = default;
  RecvSink(const RecvSink&) = delete;
  RecvSink& operator=(const RecvSink&) = delete;
  virtual ~RecvSink() = default;

  /// Bytes from `offset` of the message, whole elements. Each byte is passed once; pieces come in any order. `data` may
  /// be overwritten.
  virtual void consume(std::size_t offset, std::byte* data, std::size_t bytes) = 0;
};

/// A message to a rank, or none. `data` must not change until the exchange ends.
struct Outgoing {
  int to = no_peer;
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
};

/// A message from a rank, or none: stored at `data`, or passed to `sink` in whole elements of `element` bytes.
struct Incoming {
  int from = no_peer;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  RecvSink* sink = nullptr;
  std::size_t element = 1;
};

/// The group as the algorithms see it. Messages between two ranks are ordered; sender and receiver must use the same
/// length.
class Peers {
 public:
  Peers() = default;
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;
  virtual ~Peers() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  /// Sends and receives at once. Blocks until `out` may be changed and `in` has arrived. Peers must be other ranks.
  [[nodiscard]] virtual Result<void> exchange(const Outgoing& out, const Incoming& in) = 0;

  [[nodiscard]] Result<void> send(const Outgoing& out) { return exchange(out, {}); }
  [[nodiscard]] Result<void> receive(const Incoming& in) { return exchange({}, in); }
  /// The rank at `distance` along the ring, which may be negative.
  [[nodiscard]] int at(int distance) const { return ((rank() + distance) % size() + size()) % size(); }
};

}  // namespace ddrun::collectives
