#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ddrun/base/unique_fd.hpp"
#include "session.hpp"

namespace ddrun::store {

/// Short replies that are sent together after a batch of events. recv() and send() together exceed the instruction
/// cache: alternating them makes each request a tenth slower.
struct Outbox {
  /// Longer batches of replies are sent at once: copying them would cost more than it saves.
  static constexpr std::size_t max_batched_bytes = 4096;
  struct Item {
    class Connection* to;
    std::size_t begin, size;
  };
  std::string bytes;
  std::vector<Item> items;
};

/// State that is shared by all connections; used on the server's thread only.
struct ServerShared {
  static constexpr std::size_t buffer_size = 64 * 1024;

  ServerState state;
  std::uint64_t bytes_in = 0;
  std::uint64_t bytes_out = 0;
  /// For recv(); a connection copies only the part of an incomplete request. Not zeroed, so that an idle server does
  /// not use these pages.
  std::unique_ptr<char[]> buffer{new char[buffer_size]};
  std::string replies;                   ///< of the present batch of requests
  Outbox outbox;                         ///< short batches of replies of this batch of events
  class Connection* current = nullptr;   ///< the connection of the present batch of requests
  std::vector<class Connection*> woken;  ///< have unsolicited output; flushed after this batch of events
};

/// One client of the server: its socket, its incomplete request, its unsent replies. Does not block.
///
/// While it has unsent replies nothing is read from it, which bounds its memory. Functions that return bool return
/// false when the connection has to be closed.
class Connection final : public Waiter {
 public:
  Connection(UniqueFd fd, ServerShared& shared) : fd_(std::move(fd)), shared_(&shared), session_(shared.state, *this) {}
  ~Connection() { leave(); }

  /// One recv(), and all requests that it completes.
  [[nodiscard]] bool on_readable();
  /// flush(), then continues with requests that were paused for it.
  [[nodiscard]] bool on_writable();
  /// Sends unsent replies.
  [[nodiscard]] bool flush();
  /// Sends replies from the outbox.
  [[nodiscard]] bool deliver(std::string_view replies);

  [[nodiscard]] bool has_unsent() const { return !out_.empty(); }
  /// flush() follows in this batch of events.
  [[nodiscard]] bool woken() const { return woken_; }
  [[nodiscard]] int fd() const { return fd_.get(); }
  /// Uses shutdown(), as a child between clone and exec may hold a copy of the descriptor.
  void close();

  // Used by the loop that owns it.
  std::size_t index = 0;         ///< in the loop's list
  bool watched_for_out = false;  ///< EPOLLOUT is watched, else EPOLLIN

 private:
  void on_keys_exist() override;
  void on_key_changed(KeyChange change, std::string_view key, std::string_view before, std::string_view now) override;
  [[nodiscard]] bool receive();
  [[nodiscard]] bool serve(std::string_view input);
  [[nodiscard]] bool send_replies(bool at_once);
  ssize_t send_some(std::string_view bytes);
  void keep_unparsed(std::string_view rest);
  [[nodiscard]] bool make_room(std::size_t more);
  [[nodiscard]] bool grow(std::string& buffer, std::size_t more);
  bool count_buffers();
  [[nodiscard]] bool within_limits();
  bool refuse(const char* what);
  void wake();
  void leave();

  UniqueFd fd_;
  ServerShared* shared_;
  Session session_;
  bool stopped_early_ = false;  // `pending_` may begin with whole requests
  bool woken_ = false;          // is in ServerShared::woken
  std::string pending_;         // input not carried out yet
  std::string out_;             // replies not sent yet, from out_begin_ on
  std::size_t out_begin_ = 0;
  std::size_t buffered_ = 0;    // its part of ServerState::buffered
  std::size_t lost_bytes_ = 0;  // of the first notification for which there was no room
};

}  // namespace ddrun::store
