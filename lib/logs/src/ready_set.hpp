#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <functional>
#include <memory>

#include "ddrun/base/result.hpp"

struct epoll_event;

namespace ddrun::logs {

/// Many descriptors that are read when they have something, watched by an epoll of their own, which Asio watches as one
/// descriptor. A pipe costs one system call to add and none for each read, where one that Asio watches itself costs
/// three and one: with two pipes for each of a thousand workers that is a tenth of the time it takes to start them.
///
/// One thread. Descriptors stay their owner's, who must remove one before closing it: a worker on its way to exec may
/// hold a copy, and then closing alone would not end its being watched.
class ReadySet {
 public:
  /// `on_ready` is called for each descriptor that can be read or is at its end, again and again until it is read or
  /// removed; `tag` is what it was added with. It may add and remove descriptors, also its own.
  ReadySet(boost::asio::any_io_executor executor, std::function<void(void* tag)> on_ready);
  ~ReadySet();
  ReadySet(const ReadySet&) = delete;
  ReadySet& operator=(const ReadySet&) = delete;

  /// Fails with `unavailable` if there is no descriptor left, or the user's number of watches is used up.
  Result<void> add(int fd, void* tag);
  void remove(int fd, void* tag);
  /// Until resume() it is not watched; its end may still be told, once. Cannot fail: the place is kept.
  void pause(int fd, void* tag);
  void resume(int fd, void* tag);
  /// Until resume() only what changes is told: the present state once, then each new arrival or end.
  void watch_edges(int fd, void* tag);
  /// Counts from 1 the looks at what is ready. Of what was written before a look, only that look tells nothing of the
  /// order.
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
  int event_count_ = 0;  ///< events of the present turn, those before `next_` are done
  int next_ = 0;
  std::uint64_t turns_ = 1;
  std::shared_ptr<ReadySet*> self_;  ///< what a late handler finds instead of us when we are gone
};

}  // namespace ddrun::logs
