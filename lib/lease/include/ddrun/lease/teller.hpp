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
class Teller {
 public:
  Teller(boost::asio::any_io_executor executor, Callbacks callbacks);

  void leader(const Leader& leader);
  /// Where one other than me was told of before.
  void no_leader();
  /// I lead no more; nothing is said.
  void forget_me() {
    if (told_ && told_->is_me) told_.reset();
  }
  void lost(std::string why);
  void verdict(std::string text);
  void trouble(std::string text);
  void unusable(Error error);
  void answer(Lease::Done done, Result<void> result);
  /// Something that only this kind of lease tells, in order with the rest.
  void also(std::function<void()> what);
  /// Nothing is said any more, not even what is under way.
  void close();

 private:
  void post(std::function<void(const Callbacks&)> what);

  boost::asio::any_io_executor executor_;
  std::shared_ptr<const Callbacks> callbacks_;
  std::optional<Leader> told_;
  std::string trouble_;
};

}  // namespace ddrun::lease
