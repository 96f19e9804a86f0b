#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "ddrun/base/result.hpp"
#include "ddrun/helper/run.hpp"
#include "ddrun/rendezvous/hmac.hpp"
#include "ddrun/rendezvous/munge.hpp"

namespace ddrun::rendezvous {

/// Takes the secret out of a coordinator's credential, by `unmunge`. One that it has read it knows: a connection that
/// is made again costs no program. Used on the executor's thread; nothing is called once it is gone. Does not block but
/// for the start of a program.
class CredentialReader {
 public:
  /// Fails as secret_of() of munge.hpp.
  using OnRead = std::function<void(const Result<HmacKey>&)>;

  CredentialReader(boost::asio::any_io_executor executor, MungePlace place);
  ~CredentialReader();
  CredentialReader(const CredentialReader&) = delete;
  CredentialReader& operator=(const CredentialReader&) = delete;

  /// Calls `on_read` once, later, unless another call comes first. A program that reads the same credential already is
  /// waited for, though the one who asked has lost his patience: the next attempt finds it done.
  void read(std::string_view credential, OnRead on_read);

 private:
  void tell_later();

  boost::asio::any_io_executor executor_;
  MungePlace place_;
  std::string credential_;         // that is being read, or was read last
  std::optional<HmacKey> secret_;  // what was in it
  OnRead on_read_;
  helper::Running unmunge_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ddrun::rendezvous
