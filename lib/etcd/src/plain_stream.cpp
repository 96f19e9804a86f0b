#include <boost/asio/write.hpp>
#include <utility>

#include "stream.hpp"

namespace ddrun::etcd {

namespace {

class PlainStream : public Stream {
 public:
  explicit PlainStream(const boost::asio::any_io_executor& executor) : socket_(executor) {}

  void connect(const boost::asio::ip::tcp::endpoint& to, OnConnected on_connected) override {
    socket_.async_connect(to, [self = shared_from_this(), this, done = std::move(on_connected)](const error_code& ec) {
      error_code ignored;
      if (!ec) socket_.set_option(boost::asio::ip::tcp::no_delay(true), ignored);
      done(ec);
    });
  }
  void write(boost::asio::const_buffer bytes, OnBytes on_written) override {
    boost::asio::async_write(
        socket_, bytes, [self = shared_from_this(), done = std::move(on_written)](const error_code& ec, std::size_t n) {
          done(ec, n);
        });
  }
  void read_some(boost::asio::mutable_buffer buffer, OnBytes on_read) override {
    socket_.async_read_some(buffer, [self = shared_from_this(), done = std::move(on_read)](
                                        const error_code& ec, std::size_t n) { done(ec, n); });
  }
  void close() override {
    error_code ignored;
    socket_.close(ignored);
  }
  [[nodiscard]] Reason reason(const error_code& ec) const override { return {ec.message()}; }

 private:
  boost::asio::ip::tcp::socket socket_;
};

}  // namespace

StreamMaker plain_streams(const boost::asio::any_io_executor& executor) {
  return [executor](const std::string&) { return std::make_shared<PlainStream>(executor); };
}

}  // namespace ddrun::etcd
