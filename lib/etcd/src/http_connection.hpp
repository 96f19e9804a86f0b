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

/// Why there is no answer.
struct HttpError {
  std::string why;
  bool permanent = false;  ///< trying again cannot help
  bool connected = false;  ///< it was reached
};

/// One connection of HTTP/1.1: one request after the other, or one whose answer never ends. It has no clock: who does
/// not want to wait drops it, and nothing is called any more.
class HttpConnection {
 public:
  static constexpr std::size_t max_header_bytes = 16 * 1024;
  static constexpr std::size_t max_body_bytes = 1024 * 1024;
  static constexpr std::size_t max_line_bytes = 1024 * 1024;  ///< of an answer that never ends

  HttpConnection(std::shared_ptr<Stream> stream, const boost::asio::ip::tcp::endpoint& to);
  ~HttpConnection();
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  using OnResponse = std::function<void(tl::expected<HttpResponse, HttpError>)>;
  using OnLine = std::function<void(std::string_view line)>;

  /// After an error, or if it cannot be used again, is_open() is false.
  void exchange(std::string request, OnResponse on_response);
  /// Each line of an answer with status 200. `on_end`: it is over, or was another answer from the beginning.
  void follow(std::string request, OnLine on_line, OnResponse on_end);
  /// True until something went wrong or the other side will not take another request.
  [[nodiscard]] bool is_open() const;
  /// Whether an answer came through it.
  [[nodiscard]] bool was_used() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddrun::etcd
