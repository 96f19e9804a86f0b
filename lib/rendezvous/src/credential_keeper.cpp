#include "credential_keeper.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "ddrun/base/text.hpp"
#include "ddrun/rendezvous/secret.hpp"

namespace ddrun::rendezvous {

namespace {

std::string make_secret() {
  auto text = new_secret_text();
  // As random_nonce().
  if (!text) std::abort();
  return std::move(*text);
}

}  // namespace

CredentialKeeper::CredentialKeeper(boost::asio::any_io_executor executor, MungePlace place, CredentialTimes times)
    : CredentialKeeper(std::move(executor), std::move(place), times, make_secret()) {}

CredentialKeeper::CredentialKeeper(boost::asio::any_io_executor executor, MungePlace place, CredentialTimes times,
                                   std::string secret)
    : executor_(std::move(executor)),
      place_(std::move(place)),
      times_(times),
      payload_(credential_payload(place_.job, secret)),
      secret_(secret),
      timer_(executor_) {
  wipe(secret);
}

CredentialKeeper::~CredentialKeeper() { wipe(payload_); }

Result<void> CredentialKeeper::try_out() {
  asked_at_ = Clock::now();
  auto sealed = credential_of(helper::run(munge_command(place_, ::geteuid()), munge_limits, payload_));
  if (!sealed) return tl::unexpected(sealed.error());
  sealed_at_ = asked_at_;
  credential_ = std::move(*sealed);
  return {};
}

std::string CredentialKeeper::credential() const {
  return Clock::now() - sealed_at_ < times_.good_for ? credential_ : std::string();
}

void CredentialKeeper::keep(std::function<void(const std::string&)> on_new,
                            std::function<void(const std::string&)> on_trouble) {
  on_new_ = std::move(on_new);
  on_trouble_ = std::move(on_trouble);
  renew_after(std::max<Clock::duration>(sealed_at_ + times_.renewed_after - Clock::now(), Clock::duration::zero()));
}

void CredentialKeeper::rest() {
  alive_ = std::make_shared<bool>(true);  // a timer that has run out may still be on its way
  timer_.cancel();
  munge_.reset();
}

void CredentialKeeper::renew_after(Clock::duration pause) {
  timer_.expires_after(pause);
  timer_.async_wait([this, alive = std::weak_ptr<bool>(alive_)](const boost::system::error_code& ec) {
    if (!ec && !alive.expired()) renew();
  });
}

void CredentialKeeper::renew() {
  asked_at_ = Clock::now();
  munge_ = helper::start(
      executor_, munge_command(place_, ::geteuid()), munge_limits,
      [this](const Result<helper::Output>& answer) { sealed(answer); }, payload_);
}

void CredentialKeeper::sealed(const Result<helper::Output>& answer) {
  auto credential = credential_of(answer);
  if (!credential) {
    renew_after(times_.pause_after_failure);
    if (!credential_.empty() && this->credential().empty()) {
      credential_.clear();
      on_new_(credential_);  // one that has expired would be taken for clocks that differ
    }
    if (!std::exchange(told_of_trouble_, true)) {
      on_trouble_(concat("MUNGE gives the coordinator no new credential (", credential.error().message,
                         "): agents that come late may have to wait until munged works again"));
    }
    return;
  }
  told_of_trouble_ = false;
  sealed_at_ = asked_at_;
  credential_ = std::move(*credential);
  renew_after(times_.renewed_after);
  on_new_(credential_);
}

}  // namespace ddrun::rendezvous
