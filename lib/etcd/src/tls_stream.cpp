#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/impl/src.hpp>  // Asio's TLS implementation, once per program: BOOST_ASIO_SEPARATE_COMPILATION
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <utility>

#include "ddrun/base/address.hpp"
#include "ddrun/base/text.hpp"
#include "stream.hpp"

namespace ddrun::etcd {

namespace {

namespace ssl = boost::asio::ssl;
using tcp = boost::asio::ip::tcp;

class TlsStream : public Stream {
 public:
  TlsStream(const boost::asio::any_io_executor& executor, std::shared_ptr<ssl::context> context,
            const std::string& host)
      : context_(std::move(context)), stream_(executor, *context_) {
    stream_.set_verify_callback(ssl::host_name_verification(host));
    // SNI allows names only.
    if (!IpAddress::parse(host)) SSL_set_tlsext_host_name(stream_.native_handle(), host.c_str());
  }

  void connect(const tcp::endpoint& to, OnConnected on_connected) override {
    stream_.next_layer().async_connect(
        to, [self = shared_from_this(), this, done = std::move(on_connected)](const error_code& ec) mutable {
          if (ec) return done(ec);
          error_code ignored;
          stream_.next_layer().set_option(tcp::no_delay(true), ignored);
          handshaking_ = true;
          stream_.async_handshake(ssl::stream_base::client,
                                  [self, done = std::move(done)](const error_code& result) { done(result); });
        });
  }
  void write(boost::asio::const_buffer bytes, OnBytes on_written) override {
    boost::asio::async_write(
        stream_, bytes, [self = shared_from_this(), done = std::move(on_written)](const error_code& ec, std::size_t n) {
          done(ec, n);
        });
  }
  void read_some(boost::asio::mutable_buffer buffer, OnBytes on_read) override {
    stream_.async_read_some(buffer, [self = shared_from_this(), done = std::move(on_read)](
                                        const error_code& ec, std::size_t n) { done(ec, n); });
  }
  void close() override {
    error_code ignored;
    stream_.next_layer().close(ignored);  // without close_notify: all responses were received
  }

  [[nodiscard]] Reason reason(const error_code& ec) const override {
    if (!handshaking_) return {ec.message()};
    const long verdict = SSL_get_verify_result(const_cast<TlsStream*>(this)->stream_.native_handle());
    if (verdict == X509_V_ERR_UNSPECIFIED || verdict == X509_V_ERR_APPLICATION_VERIFICATION) {
      return {"its certificate is for another host", true};
    }
    if (verdict != X509_V_OK) {
      return {concat("its certificate is not trusted: ", X509_verify_cert_error_string(verdict)), true};
    }
    if (ec.category() != boost::asio::error::get_ssl_category()) return {concat("broke off TLS: ", ec.message())};
    const int code = ERR_GET_REASON(static_cast<unsigned long>(ec.value()));
    if (code == SSL_R_WRONG_VERSION_NUMBER || code == SSL_R_HTTP_REQUEST) return {"does not speak TLS", true};
    return {concat("TLS: ", ec.message()), true};
  }

 private:
  std::shared_ptr<ssl::context> context_;
  ssl::stream<tcp::socket> stream_;
  bool handshaking_ = false;
};

}  // namespace

Result<StreamMaker> tls_streams(const boost::asio::any_io_executor& executor, const EtcdOptions& options) {
  using error_code = boost::system::error_code;
  auto context = std::make_shared<ssl::context>(ssl::context::tls_client);
  const auto file_error = [](const std::string& file, const char* what, const error_code& ec) {
    return fail(Errc::invalid_argument, concat("cannot use ", file, " as ", what, ": ", ec.message()));
  };
  error_code ec;
  if (SSL_CTX_set_min_proto_version(context->native_handle(), TLS1_2_VERSION) != 1) {
    return fail(Errc::unavailable, "OpenSSL has no TLS 1.2");
  }
  context->set_verify_mode(ssl::verify_peer, ec);
  if (options.cacert.empty()) context->set_default_verify_paths(ec);
  else if (context->load_verify_file(options.cacert, ec); ec) return file_error(options.cacert, "cacert", ec);
  if (options.cert.empty() != options.key.empty()) {
    return fail(Errc::invalid_argument, "a certificate needs its key, and a key its certificate: give both or none");
  }
  if (!options.cert.empty()) {
    if (context->use_certificate_chain_file(options.cert, ec); ec) return file_error(options.cert, "cert", ec);
    // Disables the pass phrase prompt, which would read the terminal.
    context->set_password_callback([](std::size_t, ssl::context::password_purpose) { return std::string(); }, ec);
    if (context->use_private_key_file(options.key, ssl::context::pem, ec); ec)
      return file_error(options.key, "key", ec);
  }
  return [executor, context](const std::string& host) { return std::make_shared<TlsStream>(executor, context, host); };
}

}  // namespace ddrun::etcd
