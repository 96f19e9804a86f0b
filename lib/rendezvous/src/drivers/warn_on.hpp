#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/post.hpp>
#include <functional>
#include <string>
#include <utility>

#include "ddrun/base/messages.hpp"

namespace ddrun::rendezvous {

/// Returns a thread-safe, non-blocking function that logs its argument as a warning on `executor`, whose thread owns
/// the message sink. For servers with a thread each (store, coordinator). Messages after the executor has stopped are
/// dropped; its context must outlive the server.
[[nodiscard]] inline std::function<void(const std::string&)> warn_on(boost::asio::any_io_executor executor) {
  return [executor = std::move(executor)](const std::string& text) {
    boost::asio::post(executor, [text] { say(Level::warning, text); });
  };
}

}  // namespace ddrun::rendezvous
