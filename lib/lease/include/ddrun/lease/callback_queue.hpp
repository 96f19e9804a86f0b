#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "ddrun/base/result.hpp"
#include "ddrun/lease/lease.hpp"

namespace ddrun::lease {

/// Tells the user of a lease what has changed, in order, each on its own turn of the executor, and nothing twice.
class CallbackQueue {
 public:
  CallbackQueue(boost::asio::any_io_executor executor, Callbacks callbacks);

  void leader(const Leader& leader);
  /// Where one other than me was told of before.
  void no_leader();
  /// I lead no more; nothing is said.
  void clear_self() {
    if (last_leader_ && last_leader_->is_self) last_leader_.reset();
  }
  void lost(std::string why);
  void verdict(std::string text);
  void status(std::string text);
  void unusable(Error error);
  void complete(Lease::Done done, Result<void> result);
  /// Something that only this kind of lease tells, in order with the rest.
  void post_other(std::function<void()> what);
  /// Nothing is said any more, not even what is under way.
  void close();

 private:
  void post(std::function<void(const Callbacks&)> what);

  boost::asio::any_io_executor executor_;
  std::shared_ptr<const Callbacks> callbacks_;
  std::optional<Leader> last_leader_;
  std::string last_status_;
};

}  // namespace ddrun::lease
