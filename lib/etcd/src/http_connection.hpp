#pragma once

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "ddrun/base/result.hpp"
#include "stream.hpp"

namespace ddrun::etcd {

struct HttpResponse {
  unsigned status = 0;
  std::string body;
};

/// Why there is no response.
struct HttpError {
  std::string why;
  bool permanent = false;  ///< retrying is pointless
  bool connected = false;  ///< the connection was established
};

/// An HTTP/1.1 connection: sequential requests, or one streaming response. No timeouts: to give up, destroy it; no
/// callback follows.
class HttpConnection {
 public:
  static constexpr std::size_t max_header_bytes = 16 * 1024;
  static constexpr std::size_t max_unparsed_bytes = 64 * 1024;  ///< headers, chunk headers and trailers without end
  static constexpr std::size_t max_body_bytes = 1024 * 1024;
  static constexpr std::size_t max_line_bytes = 1024 * 1024;  ///< of a streaming response

  HttpConnection(std::shared_ptr<Stream> stream, const boost::asio::ip::tcp::endpoint& to);
  ~HttpConnection();
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  using OnResponse = std::function<void(tl::expected<HttpResponse, HttpError>)>;
  using OnLine = std::function<void(std::string_view line)>;

  /// After an error, or without keep-alive, is_open() is false.
  void exchange(std::string request, OnResponse on_response);
  /// Streams the lines of a response with status 200. `on_end`: the stream ended, or the status was another.
  void follow(std::string request, OnLine on_line, OnResponse on_end);
  /// True until an error, or until the peer accepts no more requests.
  [[nodiscard]] bool is_open() const;
  /// Whether a response was received.
  [[nodiscard]] bool was_used() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddrun::etcd
