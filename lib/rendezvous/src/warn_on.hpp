#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/post.hpp>
#include <functional>
#include <string>
#include <utility>

#include "ddrun/base/messages.hpp"

namespace ddrun::rendezvous {

/// For servers with a thread of their own, the store's and the coordinator's: what they give to this is said as a
/// warning on `executor`, whose thread owns the sink of messages. May be called from any thread, never blocks; what
/// comes when the executor has stopped is dropped. The executor's context must outlive the server.
[[nodiscard]] inline std::function<void(const std::string&)> warn_on(boost::asio::any_io_executor executor) {
  return [executor = std::move(executor)](const std::string& text) {
    boost::asio::post(executor, [text] { say(Level::warning, text); });
  };
}

}  // namespace ddrun::rendezvous
