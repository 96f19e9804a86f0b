#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "key_space.hpp"
#include "request_parser.hpp"

namespace ddrun::store {

/// The server's side of one client's conversation: bytes in, bytes out, no socket.
///
/// `waiter` stands for this client in the key space: when its keys come, the owner sends wire::wait_stopped.
class Session {
 public:
  Session(KeySpace& space, Waiter& waiter) : space_(&space), waiter_(&waiter) {}

  struct Progress {
    std::size_t consumed = 0;  ///< bytes of the input that were whole requests
    bool close = false;        ///< the client broke the rules; `replies` has what it is still owed
    bool paused = false;       ///< stopped at `enough` replies; there may be more whole requests in the rest
  };

  /// Carries out the whole requests at the start of `input` and appends their replies, until these are `enough` bytes.
  [[nodiscard]] Progress handle(std::string_view input, std::string& replies, std::size_t enough);

  /// Bytes of input below which handle() can do nothing.
  [[nodiscard]] std::size_t needed() const { return parser_.needed(); }

 private:
  [[nodiscard]] bool apply(const Request& request, std::string& replies);
  [[nodiscard]] bool wait(const Request& request, std::string& replies);
  [[nodiscard]] bool multi_get(const Request& request, std::string& replies);

  KeySpace* space_;
  Waiter* waiter_;
  RequestParser parser_;
  bool greeted_ = false;
};

}  // namespace ddrun::store
