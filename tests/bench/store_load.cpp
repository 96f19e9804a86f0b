// Loads a server of the TCPStore protocol from many raw connections and prints what it did.
//
//   store_load [--port P] [--connections N] [--depth D] [--op add|set|get|connect] [--seconds S] [--value BYTES]
//   [--json]
//
// Without --port it starts ddrun's own server in this process, on a thread of its own. `connect` opens N connections,
// greets and pings on each, and counts connections per second. Every answer is checked for its size.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/store/tcp_server.hpp"

namespace {

using ddrun::Clock;

struct Options {
  std::uint16_t port = 0;
  int connections = 64;
  int depth = 1;
  std::string op = "add";
  double seconds = 2;
  std::size_t value = 64;
  bool json = false;
};

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "store_load: %s\n", what.c_str());
  std::exit(1);
}

std::string number(std::uint64_t value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

std::string field(std::string_view bytes) { return number(bytes.size()) + std::string(bytes); }

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--json") {
      options.json = true;
      continue;
    }
    if (i + 1 == argc) die(std::string(name) + " needs a value");
    const char* value = argv[++i];
    if (name == "--port") {
      options.port = static_cast<std::uint16_t>(std::atoi(value));
    } else if (name == "--connections") {
      options.connections = std::max(1, std::atoi(value));
    } else if (name == "--depth") {
      options.depth = std::max(1, std::atoi(value));
    } else if (name == "--op") {
      options.op = value;
    } else if (name == "--seconds") {
      options.seconds = std::atof(value);
    } else if (name == "--value") {
      options.value = static_cast<std::size_t>(std::atoll(value));
    } else {
      die("unknown option " + std::string(name));
    }
  }
  return options;
}

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

/// Connected, greeted and pinged; the answer to the ping is still to be read.
int open_connection(std::uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto address = loopback(port);
  if (fd < 0 || ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    die(std::string("connect: ") + std::strerror(errno));
  }
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  static constexpr char hello[] = {0x00, '\xce', '\xf7', '\x85', 0x3c, 0x0d, 1, 2, 3, 4};
  if (::send(fd, hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello) die("the server hung up");
  return fd;
}

void read_exactly(int fd, char* to, std::size_t size) {
  if (::recv(fd, to, size, MSG_WAITALL) != static_cast<ssize_t>(size)) die("the server hung up");
}

std::vector<int> open_all(const Options& options) {
  std::vector<int> fds;
  for (int i = 0; i < options.connections; ++i) fds.push_back(open_connection(options.port));
  char echo[4];
  for (const int fd : fds) read_exactly(fd, echo, sizeof echo);
  return fds;
}

/// A batch of `depth` requests per connection, again when all its answers are there.
struct Load {
  std::string batch;
  std::size_t answer = 0;  // bytes for a whole batch
};

Load make_load(const Options& options, int connection) {
  const std::string key = "/key" + std::to_string(connection);
  Load load;
  for (int i = 0; i < options.depth; ++i) {
    if (options.op == "add") {
      load.batch += '\x04' + field(key) + number(1);
      load.answer += 8;
    } else if (options.op == "get") {
      load.batch += '\x03' + field("/value");
      load.answer += 8 + options.value;
    } else if (options.op == "set") {
      load.batch += '\x01' + field(key) + field(std::string(options.value, 'v'));
    } else {
      die("unknown --op " + options.op);
    }
  }
  if (options.op == "set") {  // has no answer of its own: a ping per batch shows how far the server is
    load.batch += std::string("\x0d") + "ping";
    load.answer = 4;
  }
  return load;
}

struct Figures {
  double operations = 0;
  double seconds = 0;
  double median_us = 0;  // of a whole batch
  double p99_us = 0;
};

Figures run_load(const Options& options) {
  const auto fds = open_all(options);
  std::vector<Load> loads;
  std::vector<std::size_t> missing;
  std::vector<Clock::time_point> sent(fds.size());
  for (int i = 0; i < options.connections; ++i) {
    loads.push_back(make_load(options, i));
    missing.push_back(loads.back().answer);
  }
  if (options.op == "get") {
    const auto request = '\x01' + field("/value") + field(std::string(options.value, 'v')) + "\x0dping";
    char echo[4];
    (void)::send(fds[0], request.data(), request.size(), MSG_NOSIGNAL);
    read_exactly(fds[0], echo, sizeof echo);
  }
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  for (std::size_t i = 0; i < fds.size(); ++i) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = i;
    ::epoll_ctl(epoll, EPOLL_CTL_ADD, fds[i], &event);
  }
  const auto send_batch = [&](std::size_t i) {
    const auto& batch = loads[i].batch;
    sent[i] = Clock::now();
    if (::send(fds[i], batch.data(), batch.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(batch.size())) {
      die("the server hung up");
    }
    missing[i] = loads[i].answer;
  };
  std::vector<float> latencies;
  latencies.reserve(1 << 22);
  std::vector<char> buffer(1 << 20);
  std::vector<epoll_event> events(512);
  const auto start = Clock::now();
  const auto end = start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.seconds));
  for (std::size_t i = 0; i < fds.size(); ++i) send_batch(i);
  std::size_t batches = 0;
  auto now = start;
  while (now < end) {
    const int count = ::epoll_wait(epoll, events.data(), static_cast<int>(events.size()), 1000);
    for (int e = 0; e < count; ++e) {
      const auto i = static_cast<std::size_t>(events[static_cast<std::size_t>(e)].data.u64);
      const ssize_t got = ::recv(fds[i], buffer.data(), std::min(buffer.size(), missing[i]), MSG_DONTWAIT);
      if (got <= 0) die("the server hung up");
      missing[i] -= static_cast<std::size_t>(got);
      if (missing[i] > 0) continue;
      ++batches;
      if (latencies.size() < latencies.capacity()) {
        latencies.push_back(std::chrono::duration<float, std::micro>(Clock::now() - sent[i]).count());
      }
      send_batch(i);
    }
    now = Clock::now();
  }
  for (const int fd : fds) ::close(fd);
  ::close(epoll);
  Figures figures;
  figures.operations = static_cast<double>(batches) * options.depth;
  figures.seconds = std::chrono::duration<double>(now - start).count();
  std::sort(latencies.begin(), latencies.end());
  if (!latencies.empty()) {
    figures.median_us = latencies[latencies.size() / 2];
    figures.p99_us = latencies[latencies.size() * 99 / 100];
  }
  return figures;
}

Figures run_connect(const Options& options) {
  const auto start = Clock::now();
  const auto fds = open_all(options);
  Figures figures;
  figures.operations = options.connections;
  figures.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  for (const int fd : fds) ::close(fd);
  return figures;
}

}  // namespace

int main(int argc, char** argv) {
  Options options = parse(argc, argv);
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);

  std::unique_ptr<ddrun::store::TcpServer> server;
  if (options.port == 0) {
    auto started = ddrun::store::TcpServer::start();
    if (!started) die(started.error().message);
    server = std::move(*started);
    options.port = server->port();
  }
  const Figures figures = options.op == "connect" ? run_connect(options) : run_load(options);
  std::printf(
      options.json
          ? "{\"op\": \"%s\", \"connections\": %d, \"depth\": %d, \"ops_per_second\": %.0f, \"batch_us_p50\": %.1f, "
            "\"batch_us_p99\": %.1f}\n"
          : "%-7s %6d connections, depth %3d: %10.0f ops/s, batch p50 %.1f us, p99 %.1f us\n",
      options.op.c_str(), options.connections, options.depth, figures.operations / figures.seconds, figures.median_us,
      figures.p99_us);
  return 0;
}
