#include "tcp/links.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <latch>
#include <optional>

#include "ddrun/test/catch.hpp"
#include "ranks.hpp"
#include "tcp/communicator.hpp"

using namespace ddrun;
using namespace ddrun::collectives;
using namespace std::chrono_literals;
using ddrun::test::in_time;
using ddrun::test::run_ranks;

namespace {

/// The endpoint that a rank published.
std::optional<SocketAddress> endpoint_of(const Group& group, int rank) {
  const auto endpoint = group.store->get(concat(group.prefix, "ring/", rank), in_time());
  if (!endpoint) return std::nullopt;
  const auto fields = split(*endpoint, ' ');
  const auto port = parse_integer(fields[1], 1, 65535);
  return SocketAddress::parse(fields[0], static_cast<std::uint16_t>(*port));
}

UniqueFd connect_without_token(const SocketAddress& at, std::string_view bytes) {
  UniqueFd fd(socket(at.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(fd.get(), at.get(), at.size) != 0) return {};
  if (send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(bytes.size())) return {};
  return fd;
}

/// Accepts until the stream from `peer` exists.
std::string accept_until(TcpLinks& links, int peer, int stream) {
  for (const Deadline deadline = in_time(); links.from(peer, stream) < 0;) {
    if (Clock::now() > deadline) return concat("rank ", peer, " did not call");
    if (auto accepted = links.accept_pending(); !accepted) return accepted.error().message;
    std::vector<pollfd> polled;
    links.add_poll_fds(polled);
    poll(polled.data(), polled.size(), 100);
  }
  return {};
}

}  // namespace

TEST_CASE("only the ring is linked until a call needs more") {
  const auto problems = run_ranks(5, [](const Group& group) -> std::string {
    auto links = TcpLinks::connect(group, in_time());
    if (!links) return links.error().message;
    for (int peer = 0; peer < group.size; ++peer) {
      const bool next = peer == (group.rank + 1) % group.size;
      const bool previous = group.rank == (peer + 1) % group.size;
      if (next != (links->to(peer, 0) >= 0)) return concat("to ", peer);
      if (previous != (links->from(peer, 0) >= 0)) return concat("from ", peer);
      if (links->to(peer, 1) >= 0 || links->from(peer, 1) >= 0) return "a second stream";
    }
    // Across the ring with several streams, while the peer only connects back.
    const int far = (group.rank + 2) % group.size;
    const int farther = (group.rank + 3) % group.size;
    if (auto connected = links->connect(far, 3, in_time()); !connected) return connected.error().message;
    if (auto connected = links->connect(far, 2, in_time()); !connected) return connected.error().message;
    for (int stream = 0; stream < 3; ++stream) {
      if (links->to(far, stream) < 0) return "no stream to";
      if (auto problem = accept_until(*links, farther, stream); !problem.empty()) return problem;
    }
    return links->to(far, 3) >= 0 || links->from(farther, 3) >= 0 ? "a fourth stream" : "";
  });
  CHECK(problems == std::vector<std::string>(5));
}

TEST_CASE("connections with a wrong or late token do not block a rank") {
  std::latch linked(2);
  const auto problems = run_ranks(2, [&](const Group& group) -> std::string {
    auto links = TcpLinks::connect(group, in_time());
    if (!links) return links.error().message;
    linked.arrive_and_wait();
    const int peer = 1 - group.rank;
    const auto at = endpoint_of(group, peer);
    if (!at) return "no place";
    // One sends a wrong token, two send nothing.
    const UniqueFd wrong = connect_without_token(*at, std::string(40, 'x'));
    const UniqueFd silent = connect_without_token(*at, "");
    const UniqueFd gone = connect_without_token(*at, "");
    if (auto connected = links->connect(peer, 2, in_time()); !connected) return connected.error().message;
    const auto start = Clock::now();
    if (auto problem = accept_until(*links, peer, 1); !problem.empty()) return problem;
    if (Clock::now() - start > 1500ms) return "they were waited for";
    // The connection with the wrong token must be closed by now.
    char byte = 0;
    timeval limit{20, 0};
    setsockopt(wrong.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    const ssize_t got = recv(wrong.get(), &byte, 1, 0);
    return got == 0 || (got < 0 && errno == ECONNRESET) ? "" : "the connection was not closed";
  });
  CHECK(problems == std::vector<std::string>(2));
}

TEST_CASE("a connection with an incomplete hello is closed after a while") {
  std::latch linked(2);
  const auto problems = run_ranks(2, [&](const Group& group) -> std::string {
    auto links = TcpLinks::connect(group, in_time());
    if (!links) return links.error().message;
    linked.arrive_and_wait();
    if (group.rank == 0) return "";
    const auto at = endpoint_of(group, 1);
    if (!at) return "no place";
    const UniqueFd silent = connect_without_token(*at, "");
    timeval limit{0, 10000};
    setsockopt(silent.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    for (const Deadline deadline = in_time(); Clock::now() < deadline;) {
      if (auto accepted = links->accept_pending(); !accepted) return accepted.error().message;
      char byte = 0;
      if (recv(silent.get(), &byte, 1, 0) == 0) return "";
    }
    return "it is still there";
  });
  CHECK(problems == std::vector<std::string>(2));
}

TEST_CASE("a rank that no longer listens is reported as lost") {
  std::latch linked(2);
  std::latch closed(1);
  const auto messages = run_ranks(2, [&](const Group& group) -> std::string {
    auto links = TcpLinks::connect(group, in_time());
    if (!links) return links.error().message;
    linked.arrive_and_wait();
    if (group.rank == 1) {
      links->close();
      closed.count_down();
      return "";
    }
    closed.wait();
    const auto connected = links->connect(1, 2, in_time());
    if (connected) return "it could";
    return connected.error().code == Errc::connection_lost && connected.error().message == "rank 1 is gone"
               ? ""
               : connected.error().message;
  });
  CHECK(messages == std::vector<std::string>(2));
}

TEST_CASE("an invalid number of streams is refused") {
  TcpOptions options;
  for (const int streams : {-1, 65}) {
    options.streams = streams;
    const auto made = TcpCommunicator::connect(Group{}, options, in_time());
    REQUIRE(!made);
    CHECK(made.error().code == Errc::invalid_argument);
    CHECK(made.error().message.find(concat("cannot have ", streams, " streams")) != std::string::npos);
  }
}
