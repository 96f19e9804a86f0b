#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <functional>
#include <memory>

#include "ddrun/base/result.hpp"

struct epoll_event;

namespace ddrun::logs {

/// An epoll set of descriptors to read, which Asio watches as one descriptor. A pipe costs one system call to add and
/// none for each read; watched by Asio itself, three and one: with two pipes for each of a thousand workers that is a
/// tenth of the time it takes to start them.
///
/// Used on the executor's thread only. Descriptors are borrowed, and must be removed before they are closed: a worker
/// between clone and exec may hold a copy, which would keep the descriptor in the set.
class ReadySet {
 public:
  /// `on_ready` is called in each turn for each descriptor that is readable or at its end, with the tag of add(). It
  /// may add and remove descriptors, also that one.
  ReadySet(boost::asio::any_io_executor executor, std::function<void(void* tag)> on_ready);
  ~ReadySet();
  ReadySet(const ReadySet&) = delete;
  ReadySet& operator=(const ReadySet&) = delete;

  /// Fails with `unavailable` if no descriptor or no epoll watch of the user is left.
  Result<void> add(int fd, void* tag);
  void remove(int fd, void* tag);
  /// Until resume() it is not reported, but for its end, once. Cannot fail: it stays in the set.
  void pause(int fd, void* tag);
  void resume(int fd, void* tag);
  /// Until resume() it is watched edge-triggered: its present state is reported once, then each change.
  void watch_edges(int fd, void* tag);
  /// The number of the present epoll_wait(), from 1. The order of writes that were read in the same turn is unknown.
  [[nodiscard]] std::uint64_t turns() const { return turns_; }
  /// No call of `on_ready` comes after this.
  void close();

 private:
  Result<void> open();
  void change(int fd, void* tag, unsigned events);
  void wait();
  void dispatch_events();

  boost::asio::posix::stream_descriptor epoll_;
  std::function<void(void*)> on_ready_;
  std::unique_ptr<epoll_event[]> events_;
  int event_count_ = 0;  ///< events of the last epoll_wait(), those before `next_` are done
  int next_ = 0;
  std::uint64_t turns_ = 1;
  std::shared_ptr<ReadySet*> self_;  ///< null after close(), for a pending handler
};

}  // namespace ddrun::logs
