#include "http_connection.hpp"

#include <boost/asio/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <optional>
#include <utility>

#include "ddrun/base/text.hpp"

namespace ddrun::etcd {

namespace http = boost::beast::http;
using boost::system::error_code;

class HttpConnection::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(std::shared_ptr<Stream> stream, const boost::asio::ip::tcp::endpoint& to)
      : stream_(std::move(stream)), to_(to) {}

  void start_request(std::string request, OnLine on_line, OnResponse on_response) {
    request_ = std::move(request);
    on_line_ = std::move(on_line);
    on_response_ = std::move(on_response);
    parser_.emplace();
    parser_->eager(true);
    parser_->header_limit(max_header_bytes);
    if (on_line_) parser_->body_limit(boost::none);
    else parser_->body_limit(max_body_bytes);
    if (connected_) return write();
    stream_->connect(to_, [self = shared_from_this()](const error_code& ec) {
      if (self->dropped_) return;
      if (ec) {
        auto reason = self->stream_->reason(ec);
        return self->failed({std::move(reason.text), reason.permanent, false});
      }
      self->connected_ = true;
      self->write();
    });
  }

  void drop() {
    dropped_ = true;
    open_ = false;
    on_line_ = nullptr;
    on_response_ = nullptr;
    stream_->close();
  }

  [[nodiscard]] bool is_open() const { return open_; }
  [[nodiscard]] bool was_used() const { return used_; }

 private:
  void write() {
    stream_->write(boost::asio::buffer(request_), [self = shared_from_this()](const error_code& ec, std::size_t) {
      if (self->dropped_) return;
      if (ec) return self->failed({concat("broke the connection: ", ec.message()), false, true});
      self->read();
    });
  }

  void read() {
    stream_->read_some(boost::asio::buffer(buffer_),
                       [self = shared_from_this()](const error_code& ec, std::size_t size) {
                         if (self->dropped_) return;
                         self->on_bytes(ec, std::string_view(self->buffer_.data(), size));
                       });
  }

  void on_bytes(const error_code& ec, std::string_view bytes) {
    error_code bad;
    in_ += bytes;
    while (!in_.empty() && !parser_->is_done()) {
      const std::size_t taken = parser_->put(boost::asio::const_buffer(in_.data(), in_.size()), bad);
      in_.erase(0, taken);
      if (bad == http::error::need_more) {
        bad = {};
        break;
      }
      if (bad || taken == 0) break;
    }
    // The parser has no limit for the extension of a chunk and for the trailer.
    if (!bad && !parser_->is_done() && in_.size() > max_unparsed_bytes) {
      return failed({"sent a line without end", false, true});
    }
    if (bad) return failed({concat("does not answer as etcd does (", bad.message(), ")"), false, true});
    if (ec && !parser_->is_done()) {
      // A response without a length ends with the connection.
      if (ec == boost::asio::error::eof && parser_->got_some()) parser_->put_eof(bad);
      if (bad || !parser_->is_done()) {
        const auto what = ec == boost::asio::error::eof ? "closed the connection" : "broke the connection: ";
        return failed({concat(what, ec == boost::asio::error::eof ? "" : ec.message()), false, true});
      }
    }
    if (on_line_ && parser_->is_header_done() && parser_->get().result_int() == 200 && !deliver_lines()) return;
    if (!parser_->is_done()) {
      if (parser_->get().body().size() > max_body_bytes) return failed({"sent an answer without end", false, true});
      return read();
    }
    used_ = true;
    // Bytes after the response make the connection unusable.
    open_ = !ec && in_.empty() && parser_->keep_alive();
    if (!open_) stream_->close();
    const auto on_response = std::exchange(on_response_, nullptr);
    on_line_ = nullptr;
    if (on_response) on_response(HttpResponse{parser_->get().result_int(), std::move(parser_->get().body())});
  }

  /// False if the connection is done.
  bool deliver_lines() {
    auto& body = parser_->get().body();
    std::string text = std::move(body);
    body.clear();
    std::string_view left = text;
    const auto on_line = on_line_;  // the callback may drop this connection
    while (true) {
      const auto end = left.find('\n');
      if (line_.size() + std::min(end, left.size()) > max_line_bytes) {
        failed({"sent a line without end", false, true});
        return false;
      }
      line_ += left.substr(0, end);
      if (end == std::string_view::npos) return true;
      left.remove_prefix(end + 1);
      const std::string line = std::exchange(line_, {});
      if (!line.empty()) on_line(line);
      if (dropped_) return false;
    }
  }

  void failed(HttpError failure) {
    open_ = false;
    stream_->close();
    const auto on_response = std::exchange(on_response_, nullptr);
    on_line_ = nullptr;
    dropped_ = true;
    if (on_response) on_response(tl::unexpected(std::move(failure)));
  }

  std::shared_ptr<Stream> stream_;
  boost::asio::ip::tcp::endpoint to_;
  std::optional<http::response_parser<http::string_body>> parser_;
  std::string request_, in_, line_;
  std::array<char, 8192> buffer_{};
  OnLine on_line_;
  OnResponse on_response_;
  bool connected_ = false, open_ = true, used_ = false, dropped_ = false;
};

HttpConnection::HttpConnection(std::shared_ptr<Stream> stream, const boost::asio::ip::tcp::endpoint& to)
    : impl_(std::make_shared<Impl>(std::move(stream), to)) {}
HttpConnection::~HttpConnection() { impl_->drop(); }
void HttpConnection::exchange(std::string request, OnResponse on_response) {
  impl_->start_request(std::move(request), nullptr, std::move(on_response));
}
void HttpConnection::follow(std::string request, OnLine on_line, OnResponse on_end) {
  impl_->start_request(std::move(request), std::move(on_line), std::move(on_end));
}
bool HttpConnection::is_open() const { return impl_->is_open(); }
bool HttpConnection::was_used() const { return impl_->was_used(); }

}  // namespace ddrun::etcd
