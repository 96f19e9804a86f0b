#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/helper/run.hpp"
#include "ddrun/rendezvous/hmac.hpp"
#include "ddrun/rendezvous/munge.hpp"
#include "munge.hpp"

namespace ddrun::rendezvous {

/// Of a credential, counted from before it was sealed.
struct CredentialTimes {
  /// A third of its life: MUNGE may fail, or this thread stand still, for as long again, and as long once more.
  Clock::duration renewed_after = credential_life / 3;
  /// No agent is sent one that expires on its way.
  Clock::duration good_for = credential_life - std::chrono::seconds(20);
  Clock::duration pause_after_failure = std::chrono::seconds(5);
};

/// The credential of a coordinator that proves itself by MUNGE: has it sealed anew long before it expires, so that no
/// agent waits for that. Used on the executor's thread; nothing is called once it is gone. Blocks in try_out() only.
class CredentialKeeper {
 public:
  /// With a secret of its own.
  CredentialKeeper(boost::asio::any_io_executor executor, MungePlace place, CredentialTimes times = {});
  ~CredentialKeeper();
  CredentialKeeper(const CredentialKeeper&) = delete;
  CredentialKeeper& operator=(const CredentialKeeper&) = delete;

  /// Has it sealed for the first time, and waits: 10 s at most. Fails with `not_found` if there is no MUNGE here, with
  /// `unavailable` and what it says if it does not work.
  Result<void> try_out();

  [[nodiscard]] const HmacKey& secret() const { return secret_; }
  /// Empty if it may have expired: the next one is on its way then, once keep() was called.
  [[nodiscard]] std::string credential() const;

  /// From now on: `on_new` with each credential that takes the place of the last one, an empty one where that may have
  /// expired, `on_trouble` with a sentence for
  /// people when there is none to be had, once until it works again.
  void keep(std::function<void(const std::string&)> on_new, std::function<void(const std::string&)> on_trouble);
  /// No more.
  void rest();

 private:
  CredentialKeeper(boost::asio::any_io_executor executor, MungePlace place, CredentialTimes times, std::string secret);
  void renew_after(Clock::duration pause);
  void renew();
  void sealed(const Result<helper::Output>& answer);

  boost::asio::any_io_executor executor_;
  MungePlace place_;
  CredentialTimes times_;
  std::string payload_;  // wiped at the end
  HmacKey secret_;
  std::string credential_;
  Clock::time_point sealed_at_{};  // no earlier
  Clock::time_point asked_at_{};
  std::function<void(const std::string&)> on_new_;
  std::function<void(const std::string&)> on_trouble_;
  bool told_of_trouble_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  boost::asio::steady_timer timer_;
  helper::Running munge_;
};

}  // namespace ddrun::rendezvous
