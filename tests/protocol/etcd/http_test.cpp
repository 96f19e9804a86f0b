// Responses of an etcd member, or of any other server: split, truncated, garbage, too long, none.

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <memory>
#include <optional>

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/soon.hpp"
#include "etcd_client.hpp"
#include "etcd_responses.hpp"
#include "http_connection.hpp"

using namespace ddrun;
using namespace ddrun::etcd;
using namespace std::chrono_literals;
using boost::asio::ip::tcp;

namespace {

constexpr const char* header = R"({"header":{"revision":"1"}})";

std::string with_length(const std::string& body) {
  return concat("HTTP/1.1 200 OK\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
}
std::string chunk(const std::string& bytes) {
  char size[20];
  std::snprintf(size, sizeof size, "%zx\r\n", bytes.size());
  return size + bytes + "\r\n";
}
constexpr const char* chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

/// Listens, and answers each request with the next response, byte by byte if asked for; silent after the last one. ""
/// closes, "-" sends nothing.
class Peer {
 public:
  Peer(boost::asio::io_context& io, std::vector<std::string> answers, bool in_crumbs = false)
      : acceptor_(io, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0)),
        answers_(std::move(answers)),
        in_crumbs_(in_crumbs) {
    accept();
  }
  [[nodiscard]] tcp::endpoint at() const { return acceptor_.local_endpoint(); }
  [[nodiscard]] std::uint16_t port() const { return at().port(); }
  int connections = 0;
  std::string received;

 private:
  struct Link {
    explicit Link(tcp::socket with) : socket(std::move(with)) {}
    tcp::socket socket;
    std::array<char, 4096> room{};
    std::string out;
  };
  void accept() {
    acceptor_.async_accept([this](const boost::system::error_code& ec, tcp::socket socket) {
      if (ec) return;
      ++connections;
      socket.set_option(tcp::no_delay(true));
      read(std::make_shared<Link>(std::move(socket)));
      accept();
    });
  }
  void read(const std::shared_ptr<Link>& link) {
    link->socket.async_read_some(boost::asio::buffer(link->room),
                                 [this, link](const boost::system::error_code& ec, std::size_t size) {
                                   if (ec) return;
                                   received.append(link->room.data(), size);
                                   if (next_ == answers_.size()) return read(link);
                                   link->out = answers_[next_++];
                                   if (link->out.empty()) return link->socket.close();
                                   if (link->out != "-") write(link, 0);
                                   read(link);
                                 });
  }
  void write(const std::shared_ptr<Link>& link, std::size_t from) {
    if (from >= link->out.size()) {
      if (link->out.ends_with("CUT")) link->socket.close();
      return;
    }
    // A response that ends with CUT is sent without it.
    const std::size_t end = link->out.size() - (link->out.ends_with("CUT") ? 3 : 0);
    if (from >= end) return link->socket.close();
    const std::size_t size = in_crumbs_ ? 1 : end - from;
    link->socket.async_write_some(boost::asio::buffer(link->out.data() + from, size),
                                  [this, link, from](const boost::system::error_code& ec, std::size_t written) {
                                    if (!ec) write(link, from + written);
                                  });
  }

  tcp::acceptor acceptor_;
  std::vector<std::string> answers_;
  std::size_t next_ = 0;
  bool in_crumbs_;
};

bool run_until(boost::asio::io_context& io, const std::function<bool()>& condition) {
  const auto end = test::soon();
  while (!condition() && Clock::now() < end) io.run_one_for(10ms);
  return condition();
}

tl::expected<HttpResponse, HttpError> exchange(const std::string& answer, bool in_crumbs = false) {
  boost::asio::io_context io;
  const Peer peer(io, {answer}, in_crumbs);
  HttpConnection connection(plain_streams(io.get_executor())("h"), peer.at());
  std::optional<tl::expected<HttpResponse, HttpError>> got;
  connection.exchange("POST / HTTP/1.1\r\n\r\n", [&](auto result) { got = std::move(result); });
  REQUIRE(run_until(io, [&] { return got.has_value(); }));
  CHECK((connection.is_open() || !got->has_value() || answer.find("close") != std::string::npos ||
         answer.ends_with("CUT") || answer.ends_with("more")));
  return *got;
}

}  // namespace

TEST_CASE("a response is the same with a length, in chunks, byte by byte, and until the end of the connection") {
  const bool in_crumbs = GENERATE(false, true);
  CHECK(exchange(with_length("hello"), in_crumbs)->body == "hello");
  CHECK(exchange(chunked + chunk("he") + chunk("llo") + "0\r\n\r\n", in_crumbs)->body == "hello");
  // As etcd ends its errors.
  const auto error = exchange(
      "HTTP/1.1 404 Not Found\r\nTrailer: Grpc-Trailer-Content-Type\r\nTransfer-Encoding: "
      "chunked\r\n\r\n" +
          chunk("hello") + "0\r\nGrpc-Trailer-Content-Type: application/grpc\r\n\r\n",
      in_crumbs);
  REQUIRE(error);
  CHECK(error->status == 404);
  CHECK(error->body == "hello");
  CHECK(exchange("HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nhelloCUT", in_crumbs)->body == "hello");
}

TEST_CASE("truncated, invalid and endless responses are errors with a text") {
  const auto why = [](const std::string& answer) {
    const auto got = exchange(answer);
    REQUIRE_FALSE(got);
    CHECK(got.error().connected);
    return got.error().why;
  };
  CHECK(why("") == "closed the connection");
  CHECK(why("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhelloCUT") == "closed the connection");
  CHECK(why(std::string(chunked) + "5\r\nheCUT") == "closed the connection");
  CHECK(why(std::string(chunked) + chunk("hello") + "CUT") == "closed the connection");
  CHECK_THAT(why("SSH-2.0-OpenSSH_9.2\r\n"), Catch::Matchers::StartsWith("does not answer as etcd does ("));
  CHECK_THAT(why(std::string(chunked) + "zz\r\nhello\r\n"),
             Catch::Matchers::StartsWith("does not answer as etcd does ("));
  CHECK_THAT(why("HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"),
             Catch::Matchers::StartsWith("does not answer as etcd does ("));
  CHECK_THAT(why("HTTP/1.1 200 OK\r\nX: " + std::string(100'000, 'x')),
             Catch::Matchers::StartsWith("does not answer as etcd does ("));
  // Each is silent afterwards, as if more were to come.
  const std::string much(100'000, 'x');
  for (const std::string& begun : {std::string(), std::string("1;"), std::string("1;a="), chunk("a") + "1;",
                                   std::string("0\r\nX: "), chunk("a") + "0;", std::string("0\r\nX: y\r\n")}) {
    CHECK(why(chunked + begun + much) == "sent a line without end");
  }
  CHECK_THAT(why(chunked + chunk(std::string(2'000'000, 'x'))),
             Catch::Matchers::StartsWith("does not answer as etcd does ("));
  CHECK_THAT(why("HTTP/1.0 200 OK\r\n\r\n" + std::string(2'000'000, 'x')),
             Catch::Matchers::StartsWith("does not answer as etcd does ("));
}

TEST_CASE("a streaming response is delivered line by line, however it is split, and within limits") {
  const bool in_crumbs = GENERATE(false, true);
  const auto follow = [&](const std::string& answer, std::string& why) {
    boost::asio::io_context io;
    const Peer peer(io, {answer}, in_crumbs);
    HttpConnection connection(plain_streams(io.get_executor())("h"), peer.at());
    std::vector<std::string> lines;
    bool over = false;
    connection.follow(
        "POST / HTTP/1.1\r\n\r\n", [&](std::string_view line) { lines.emplace_back(line); },
        [&](tl::expected<HttpResponse, HttpError> end) {
          over = true;
          why = end ? concat(end->status, " ", end->body) : end.error().why;
        });
    REQUIRE(run_until(io, [&] { return over; }));
    return lines;
  };
  std::string why;
  CHECK(follow(chunked + chunk("one\ntw") + chunk("o\n\n") + chunk("three\nfour") + "CUT", why) ==
        std::vector<std::string>{"one", "two", "three"});
  CHECK(why == "closed the connection");
  CHECK(follow(chunked + chunk("one\n") + "0\r\n\r\n", why) == std::vector<std::string>{"one"});
  CHECK(follow("HTTP/1.1 403 Forbidden\r\nContent-Length: 3\r\n\r\nno\n", why).empty());
  CHECK(why == "403 no\n");
  if (in_crumbs) return;
  CHECK(follow(chunked + chunk(std::string(1'000'000, 'x')) + chunk(std::string(100'000, 'x')), why).empty());
  CHECK(why == "sent a line without end");
  CHECK(follow(chunked + chunk("one\n") + "1;" + std::string(100'000, 'x'), why) == std::vector<std::string>{"one"});
  CHECK(why == "sent a line without end");
}

TEST_CASE("the connection may be destroyed in each line's callback") {
  boost::asio::io_context io;
  const Peer peer(io, {chunked + chunk("one\ntwo\n") + chunk("three\n")});
  auto connection = std::make_unique<HttpConnection>(plain_streams(io.get_executor())("h"), peer.at());
  int lines = 0;
  connection->follow(
      "POST / HTTP/1.1\r\n\r\n",
      [&](std::string_view) {
        ++lines;
        connection.reset();
      },
      [](const auto&) { FAIL("told after it was dropped"); });
  REQUIRE(run_until(io, [&] { return lines == 1; }));
  for (int i = 0; i < 20; ++i) io.run_one_for(2ms);
  CHECK(lines == 1);
}

namespace {

/// A client of peers, and its reports.
struct Client {
  Client(boost::asio::io_context& io, const std::vector<std::uint16_t>& ports) {
    std::vector<EtcdClient::Endpoint> endpoints;
    for (const auto port : ports) endpoints.push_back({"127.0.0.1", port});
    client = std::make_shared<EtcdClient>(
        io.get_executor(), EtcdOptions(), std::move(endpoints), plain_streams(io.get_executor()), 100ms,
        EtcdClient::Events{[this](std::string text) { statuses.push_back(std::move(text)); },
                           [this](Error error) { unusable = std::move(error); }, [this] { ++moves; }});
    client->start();
  }
  ~Client() { client->close(); }
  void post(Clock::duration within) {
    client->post(
        "/v3/kv/range", "{}", Clock::now() + within,
        [this](const std::string& body) {
          const bool good = is_ok_response(body);
          on_response += good ? 1 : 0;
          return good;
        },
        [this](const Error& error) { failure = error; });
  }
  std::shared_ptr<EtcdClient> client;
  std::vector<std::string> statuses;
  std::optional<Error> unusable, failure;
  int moves = 0, on_response = 0;
};

}  // namespace

TEST_CASE("a member that is silent, closes, refuses or sends garbage is replaced within the timeout") {
  const std::string bad = GENERATE(as<std::string>(), "", "-", with_length("no JSON"), "garbage\r\n\r\n",
                                   "HTTP/1.1 503 Service Unavailable\r\nContent-Length: "
                                   "46\r\n\r\n{\"error\":\"etcdserver: no leader\",\"code\":14}    ",
                                   std::string(chunked) + "5\r\n{");
  CAPTURE(bad);
  boost::asio::io_context io;
  const Peer good(io, std::vector<std::string>(20, with_length(header))), other(io, std::vector<std::string>(20, bad));
  Client client(io, {good.port(), other.port()});
  for (int i = 1; i <= 5; ++i) {
    const auto begin = Clock::now();
    client.post(20s);
    REQUIRE(run_until(io, [&] { return client.on_response == i; }));
    CHECK(Clock::now() - begin < 2s);
  }
  CHECK(client.statuses.empty());
  CHECK_FALSE(client.unusable);
  // It stays with the good member, on one connection.
  CHECK(good.connections == 1);
  CHECK(client.moves <= 1);
}

TEST_CASE("a closed idle connection is reopened without an error") {
  boost::asio::io_context io;
  const std::string last =
      concat("HTTP/1.1 200 OK\r\nContent-Length: ", std::string(header).size(), "\r\n\r\n", header, "CUT");
  const Peer peer(io, {last, last, last});
  Client client(io, {peer.port()});
  for (int i = 1; i <= 3; ++i) {
    client.post(20s);
    REQUIRE(run_until(io, [&] { return client.on_response == i; }));
    // Until the end of the connection has arrived.
    for (int turn = 0; turn < 5; ++turn) io.run_one_for(2ms);
  }
  CHECK(client.moves == 0);
  CHECK(client.statuses.empty());
}

TEST_CASE("an unreachable cluster is reported once, requests end in time, and its return is reported") {
  boost::asio::io_context io;
  auto peer = std::make_unique<Peer>(io, std::vector<std::string>{with_length(header)});
  const auto at = peer->at();
  Client client(io, {at.port()});
  client.post(20s);
  REQUIRE(run_until(io, [&] { return client.on_response == 1; }));
  const auto begin = Clock::now();
  client.post(700ms);
  REQUIRE(run_until(io, [&] { return client.failure.has_value(); }));
  CHECK(client.failure->code == Errc::timeout);
  CHECK(Clock::now() - begin >= 700ms);
  CHECK(Clock::now() - begin < 3s);
  REQUIRE(client.statuses.size() == 1);
  CHECK(client.statuses[0] == concat("etcd cannot be asked: 127.0.0.1:", at.port(), ": no answer within 0.1 s"));
}

TEST_CASE("a refusal goes to the caller, and is not reported") {
  boost::asio::io_context io;
  const std::string body = R"({"error":"etcdserver: requested lease not found","code":5})";
  const Peer peer(io, {concat("HTTP/1.1 404 Not Found\r\nContent-Length: ", body.size(), "\r\n\r\n", body)});
  Client client(io, {peer.port()});
  client.post(20s);
  REQUIRE(run_until(io, [&] { return client.failure.has_value(); }));
  CHECK(client.failure->code == Errc::not_found);
  CHECK(client.failure->message == "etcd refuses: etcdserver: requested lease not found");
  CHECK(client.statuses.empty());
}
