#include "credential_reader.hpp"

#include <unistd.h>

#include <boost/asio/post.hpp>
#include <utility>

#include "ddrun/rendezvous/secret.hpp"
#include "munge.hpp"

namespace ddrun::rendezvous {

CredentialReader::CredentialReader(boost::asio::any_io_executor executor, MungePlace place)
    : executor_(std::move(executor)), place_(std::move(place)) {}

CredentialReader::~CredentialReader() = default;

void CredentialReader::read(std::string_view credential, OnRead on_read) {
  on_read_ = std::move(on_read);
  const bool same = credential == credential_;
  if (same && secret_) return tell_later();
  if (same && unmunge_) return;
  credential_ = credential;
  secret_.reset();
  unmunge_ = helper::start(
      executor_, unmunge_command(place_), munge_limits,
      [this](Result<helper::Output> answer) {
        const auto program = std::exchange(unmunge_, nullptr);
        const auto secret = secret_of(answer, place_.job, ::geteuid());
        if (answer) wipe(answer->out);
        if (secret) secret_ = *secret;
        if (const auto on_read = std::exchange(on_read_, nullptr)) on_read(secret);
      },
      credential_);
}

void CredentialReader::tell_later() {
  boost::asio::post(executor_, [this, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.expired() || !secret_) return;
    if (const auto on_read = std::exchange(on_read_, nullptr)) on_read(*secret_);
  });
}

}  // namespace ddrun::rendezvous
