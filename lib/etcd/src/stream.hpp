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

/// A connection that bytes go through, with or without TLS. One read and one write at a time; what is under way keeps
/// it alive, and ends with an error after close().
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  using error_code = boost::system::error_code;
  using OnConnected = std::function<void(const error_code&)>;
  using OnBytes = std::function<void(const error_code&, std::size_t)>;

  virtual ~Stream() = default;
  /// Once. With TLS the handshake is part of it.
  virtual void connect(const boost::asio::ip::tcp::endpoint& to, OnConnected on_connected) = 0;
  /// All of it; the bytes must stay until then.
  virtual void write(boost::asio::const_buffer bytes, OnBytes on_written) = 0;
  virtual void read_some(boost::asio::mutable_buffer buffer, OnBytes on_read) = 0;
  virtual void close() = 0;
  /// What an error of connect() means, for people, and whether trying again cannot help.
  struct Reason {
    std::string text;
    bool permanent = false;
  };
  [[nodiscard]] virtual Reason reason(const error_code& ec) const = 0;
};

/// Makes a stream to a host of that name or address.
using StreamMaker = std::function<std::shared_ptr<Stream>(const std::string& host)>;

[[nodiscard]] StreamMaker plain_streams(const boost::asio::any_io_executor& executor);
/// Reads the files of the options. Errors: `invalid_argument`. Nothing of TLS is touched before this is called.
[[nodiscard]] Result<StreamMaker> tls_streams(const boost::asio::any_io_executor& executor, const EtcdOptions& options);

}  // namespace ddrun::etcd
