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

/// Replies that are sent together after a round of events. Reading and sending are two long ways through the kernel,
/// which do not fit into a processor's cache of instructions together: taken by turns, each request costs a tenth more.
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

/// What the server's connections share, all on its one thread.
struct ServerShared {
  static constexpr std::size_t buffer_size = 64 * 1024;

  ServerState state;
  std::uint64_t bytes_in = 0;
  std::uint64_t bytes_out = 0;
  /// Where input arrives; only what is not a whole request yet is kept by its connection. Not zeroed, so that an idle
  /// server does not own these pages.
  std::unique_ptr<char[]> buffer{new char[buffer_size]};
  std::string replies;                   ///< of the batch in hand, sent as one
  Outbox outbox;                         ///< short batches of this round of events
  class Connection* current = nullptr;   ///< whose batch is in hand
  std::vector<class Connection*> woken;  ///< their waits have ended; to be flushed after this round of events
};

/// One client of the server: its socket, what it has sent of an unfinished request, what it has not yet taken.
///
/// While anything is left to be sent, nothing more is read from it: that bounds its memory. The functions that return
/// bool say false when the connection is to be closed.
class Connection final : public Waiter {
 public:
  Connection(UniqueFd fd, ServerShared& shared) : fd_(std::move(fd)), shared_(&shared), session_(shared.state, *this) {}
  ~Connection() { leave(); }

  /// One read, and everything it completed.
  [[nodiscard]] bool on_readable();
  /// Sends what is left over; then carries on with requests that had to stop for it.
  [[nodiscard]] bool on_writable();
  /// Sends what is left over.
  [[nodiscard]] bool flush();
  /// Sends replies from the outbox.
  [[nodiscard]] bool deliver(std::string_view replies);

  [[nodiscard]] bool has_unsent() const { return !out_.empty(); }
  [[nodiscard]] int fd() const { return fd_.get(); }
  /// Hangs up at once, even if a child that was just cloned still holds a copy of the descriptor.
  void close();

  // For the loop that owns it.
  std::size_t index = 0;         ///< its place in the loop's list
  bool watched_for_out = false;  ///< what the loop waits for: room to send, or else input

 private:
  void on_keys_exist() override;
  void on_key_changed(KeyChange change, std::string_view key, std::string_view before, std::string_view now) override;
  [[nodiscard]] bool receive();
  [[nodiscard]] bool serve(std::string_view input);
  [[nodiscard]] bool send_replies(bool at_once);
  ssize_t send_some(std::string_view bytes);
  void keep_unparsed(std::string_view rest);
  [[nodiscard]] bool make_room(std::size_t more);
  [[nodiscard]] bool within_limits();
  bool refuse(const char* what);
  [[nodiscard]] std::string& output_buffer();
  void leave();

  UniqueFd fd_;
  ServerShared* shared_;
  Session session_;
  bool stopped_early_ = false;    // `pending_` may begin with whole requests
  bool too_many_unread_ = false;  // has not read its news for too long
  std::string pending_;           // input not carried out yet
  std::string out_;               // replies not sent yet, from out_begin_ on
  std::size_t out_begin_ = 0;
  std::size_t buffered_ = 0;  // its part of ServerState::buffered
};

}  // namespace ddrun::store
