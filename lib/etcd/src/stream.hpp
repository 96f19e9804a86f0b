#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "ddrun/base/result.hpp"
#include "ddrun/etcd/etcd_lease.hpp"

namespace ddrun::etcd {

/// A byte stream over TCP, with or without TLS. One read and one write at a time; pending operations keep it alive, and
/// fail after close().
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  using error_code = boost::system::error_code;
  using OnConnected = std::function<void(const error_code&)>;
  using OnBytes = std::function<void(const error_code&, std::size_t)>;

  virtual ~Stream() = default;
  /// Once. Includes the TLS handshake.
  virtual void connect(const boost::asio::ip::tcp::endpoint& to, OnConnected on_connected) = 0;
  /// Writes everything; the bytes must stay valid until then.
  virtual void write(boost::asio::const_buffer bytes, OnBytes on_written) = 0;
  virtual void read_some(boost::asio::mutable_buffer buffer, OnBytes on_read) = 0;
  virtual void close() = 0;
  /// Meaning of an error of connect(), for the user; `permanent`: retrying is pointless.
  struct Reason {
    std::string text;
    bool permanent = false;
  };
  [[nodiscard]] virtual Reason reason(const error_code& ec) const = 0;
};

/// Makes a stream to a host name or address.
using StreamMaker = std::function<std::shared_ptr<Stream>(const std::string& host)>;

[[nodiscard]] StreamMaker plain_streams(const boost::asio::any_io_executor& executor);
/// Reads the certificate files of the options. Errors: `invalid_argument`. TLS is not initialized before.
[[nodiscard]] Result<StreamMaker> tls_streams(const boost::asio::any_io_executor& executor, const EtcdOptions& options);

}  // namespace ddrun::etcd
