#pragma once

#include <cstddef>

#include "ddrun/base/result.hpp"

namespace ddrun::collectives {

inline constexpr int no_peer = -1;

/// For what is kept by rank, or by a host's number.
[[nodiscard]] constexpr std::size_t index_of(int number) { return static_cast<std::size_t>(number); }

/// Takes what arrives, piece by piece, while it is still in the cache.
class RecvSink {
 public:
  RecvSink() = default;
  RecvSink(const RecvSink&) = delete;
  RecvSink& operator=(const RecvSink&) = delete;
  virtual ~RecvSink() = default;

  /// Bytes `offset` … of the message, whole elements. Each byte comes once; pieces come in any order. What is at `data`
  /// is not needed afterwards and may be overwritten.
  virtual void consume(std::size_t offset, std::byte* data, std::size_t bytes) = 0;
};

/// A message to a rank, or to none. `data` must stay as it is until the exchange ends.
struct Outgoing {
  int to = no_peer;
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
};

/// A message from a rank, or from none: stored at `data`, or handed to `arrival` in pieces of whole elements of
/// `element` bytes.
struct Incoming {
  int from = no_peer;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  RecvSink* sink = nullptr;
  std::size_t element = 1;
};

/// What an algorithm sees of the group: who it is, and a way to send and receive at once. Messages between two ranks
/// come in the order in which they were sent; both sides must name the same length.
class Peers {
 public:
  Peers() = default;
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;
  virtual ~Peers() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  /// Both at once; returns when `out` may be changed and `in` is there. Other ranks only, never this one.
  [[nodiscard]] virtual Result<void> exchange(const Outgoing& out, const Incoming& in) = 0;

  [[nodiscard]] Result<void> send(const Outgoing& out) { return exchange(out, {}); }
  [[nodiscard]] Result<void> receive(const Incoming& in) { return exchange({}, in); }
  /// The rank `distance` places further round, which may be negative.
  [[nodiscard]] int at(int distance) const { return ((rank() + distance) % size() + size()) % size(); }
};

}  // namespace ddrun::collectives
