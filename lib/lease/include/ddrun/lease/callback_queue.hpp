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

/// Posts the callbacks of a lease to the executor, in order, without repeating the same state.
class CallbackQueue {
 public:
  CallbackQueue(boost::asio::any_io_executor executor, Callbacks callbacks);

  void leader(const Leader& leader);
  /// Ignored unless another machine was reported as leader.
  void no_leader();
  /// This machine no longer leads; no callback.
  void clear_self() {
    if (last_leader_ && last_leader_->is_self) last_leader_.reset();
  }
  void lost(std::string why);
  void verdict(std::string text);
  void status(std::string text);
  void unusable(Error error);
  void complete(Lease::Done done, Result<void> result);
  /// Any other call, in order with the callbacks.
  void post_other(std::function<void()> what);
  /// Drops everything, including posted callbacks.
  void close();

 private:
  void post(std::function<void(const Callbacks&)> what);

  boost::asio::any_io_executor executor_;
  std::shared_ptr<const Callbacks> callbacks_;
  std::optional<Leader> last_leader_;
  std::string last_status_;
};

}  // namespace ddrun::lease
