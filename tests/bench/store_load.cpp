// Load generator for servers of the TCPStore protocol, or redis, with many raw connections; prints throughput and
// latency.
//
//   store_load --port P [--connections N] [--depth D] [--op get|add|set|storm|barrier|idle] [--seconds S]
//   [--value BYTES] [--cpu CPU] [--server PID] [--hold] [--resp] [--json]
//
//   get add set  each connection sends D requests, then D more when all of them are answered, for S seconds
//   storm        N connections at once; the time until all have done the handshake, at most S seconds;
//                with --hold --server is stopped until all have connected, so that connecting is not measured
//   barrier      each client adds 1 to a counter (ADD), the last one sets a flag (SET), all wait for it (WAIT);
//                repeated for S seconds
//   idle         N connections that are idle after the handshake until standard input ends; prints "ready" first
//
// --resp uses redis's protocol (get, storm and idle). Responses are compared byte by byte, those of add and set by
// size. With --server the processor time of that process is printed too: of what is measured, without the connections
// that are made before and closed after it. Depends on the C library only, so that any server can be measured.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::uint16_t port = 0;
  int connections = 64;
  int depth = 1;
  std::string op = "get";
  double seconds = 2;
  std::size_t value = 64;
  int cpu = -1;
  pid_t server = 0;
  bool hold = false;
  bool resp = false;
  bool json = false;
};

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "store_load: %s\n", what.c_str());
  std::exit(1);
}

[[noreturn]] void die_errno(const char* what) { die(std::string(what) + ": " + std::strerror(errno)); }

// -- the two protocols

template <class Integer>
std::string number(Integer value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

std::string field(std::string_view bytes) { return number(std::uint64_t{bytes.size()}) + std::string(bytes); }

std::string words(std::initializer_list<std::string_view> list) {
  std::string text = "*" + std::to_string(list.size()) + "\r\n";
  for (const auto word : list) text += "$" + std::to_string(word.size()) + "\r\n" + std::string(word) + "\r\n";
  return text;
}

struct Exchange {
  std::string request;
  std::string answer;
};

Exchange greeting(const Options& options) {
  if (options.resp) return {words({"PING"}), "+PONG\r\n"};
  static constexpr std::uint32_t magic = 0x3c85f7ce;
  return {'\0' + number(magic) + "\x0dping", "ping"};
}

Exchange store_value(const Options& options) {
  const std::string value(options.value, 'v');
  if (options.resp) return {words({"SET", "/value", value}), "+OK\r\n"};
  return {'\x01' + field("/value") + field(value) + "\x0dping", "ping"};
}

/// `depth` requests, and the answers to all of them.
Exchange make_load(const Options& options, int connection) {
  const std::string key = "/key" + std::to_string(connection);
  const std::string value(options.value, 'v');
  Exchange load;
  for (int i = 0; i < options.depth; ++i) {
    if (options.op == "get" && options.resp) {
      load.request += words({"GET", "/value"});
      load.answer += "$" + std::to_string(value.size()) + "\r\n" + value + "\r\n";
    } else if (options.op == "get") {
      load.request += '\x03' + field("/value");
      load.answer += field(value);
    } else if (options.op == "add") {
      load.request += '\x04' + field(key) + number(std::int64_t{1});
      load.answer += number(std::int64_t{0});
    } else {  // set
      load.request += '\x01' + field(key) + field(value);
    }
  }
  if (options.op == "set") {  // set has no response: a ping per batch shows the server's progress
    load.request += "\x0dping";
    load.answer = "ping";
  }
  return load;
}

// -- sockets

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

int new_socket() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) die_errno("socket");
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  // No pacing: where the default is BBR, it costs a timer per request.
  ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
  // Close by reset, or repeated runs would run out of ports.
  const linger reset{1, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  return fd;
}

void connect_to(int fd, std::uint16_t port) {
  const auto address = loopback(port);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) die_errno("connect");
}

void send_all(int fd, std::string_view bytes) {
  if (::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(bytes.size())) {
    die("the server closed the connection");
  }
}

void expect(int fd, std::string_view answer) {
  std::string got(answer.size(), '\0');
  if (::recv(fd, got.data(), got.size(), MSG_WAITALL) != static_cast<ssize_t>(got.size()))
    die("the server closed the connection");
  if (got != answer) die("not the answer that was expected");
}

std::vector<int> open_all(const Options& options) {
  const auto hello = greeting(options);
  std::vector<int> fds;
  for (int i = 0; i < options.connections; ++i) {
    fds.push_back(new_socket());
    connect_to(fds.back(), options.port);
    send_all(fds.back(), hello.request);
  }
  for (const int fd : fds) expect(fd, hello.answer);
  return fds;
}

class Epoll {
 public:
  explicit Epoll(const std::vector<int>& fds, std::uint32_t events = EPOLLIN) : fd_(::epoll_create1(EPOLL_CLOEXEC)) {
    for (std::size_t i = 0; i < fds.size(); ++i) {
      epoll_event event{};
      event.events = events;
      event.data.u64 = i;
      if (::epoll_ctl(fd_, EPOLL_CTL_ADD, fds[i], &event) != 0) die_errno("epoll_ctl");
    }
  }
  ~Epoll() { ::close(fd_); }
  Epoll(const Epoll&) = delete;
  Epoll& operator=(const Epoll&) = delete;

  /// Calls `on_input` with the index of each readable connection.
  template <class OnInput>
  void wait(int timeout_ms, OnInput on_input) {
    const int count = ::epoll_wait(fd_, events_.data(), static_cast<int>(events_.size()), timeout_ms);
    for (int i = 0; i < count; ++i) {
      on_input(static_cast<std::size_t>(events_[static_cast<std::size_t>(i)].data.u64));
    }
  }

 private:
  int fd_;
  std::vector<epoll_event> events_{512};
};

Clock::time_point after(Clock::time_point start, double seconds) {
  return start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

double seconds_between(Clock::time_point start, Clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}

// -- what is measured

struct Figures {
  double operations = 0;
  double seconds = 0;
  double server_seconds = 0;  // of processor time
  double median_us = 0;       // of a batch, or of one barrier
  double p99_us = 0;
  std::size_t samples = 0;
};

/// Waits a moment: the kernel counts what a thread has used when it goes to sleep, else only with each tick.
double processor_time(pid_t process) {
  if (process == 0) return 0;
  ::usleep(5000);
  clockid_t clock{};
  timespec used{};
  if (const int failed = ::clock_getcpuclockid(process, &clock); failed != 0) errno = failed;
  else if (::clock_gettime(clock, &used) == 0) return static_cast<double>(used.tv_sec) + 1e-9 * used.tv_nsec;
  die_errno("--server");
}

void sum_up(std::vector<float>& microseconds, Figures& figures) {
  figures.samples = microseconds.size();
  if (microseconds.empty()) return;
  std::sort(microseconds.begin(), microseconds.end());
  figures.median_us = microseconds[microseconds.size() / 2];
  figures.p99_us = microseconds[microseconds.size() * 99 / 100];
}

/// Closed loops: each connection has one batch of requests in flight.
///
/// The generator must cost less than the server. So it does not read every response to `get` at once: the socket
/// reports it (edge-triggered, one segment per response), and eight are read and compared together, which also detects
/// split responses. Requests are sent in batches, as the kernel's send path does not fit in the instruction cache
/// together with the rest.
class Load {
 public:
  explicit Load(const Options& options)
      : options_(options), fds_(open_all(options)), connections_(fds_.size()), unread_limit_(unread_limit(options)) {
    for (int i = 0; i < options.connections; ++i) loads_.push_back(make_load(options, i));
    const std::string& answer = loads_.front().answer;
    for (std::size_t i = 0; i < unread_limit_; ++i) expected_ += answer;
    buffer_.resize(expected_.size());
    latencies_.reserve(1 << 22);
    if (options.op == "get") {
      const auto first = store_value(options);
      send_all(fds_[0], first.request);
      expect(fds_[0], first.answer);
    }
  }

  Figures run() {
    const double server_before = processor_time(options_.server);
    const auto start = Clock::now();
    const auto end = after(start, options_.seconds);
    Epoll epoll(fds_, unread_limit_ > 1 ? EPOLLIN | EPOLLET : EPOLLIN);
    for (std::size_t i = 0; i < fds_.size(); ++i) send_batch(i, Clock::now());
    now_ = start;
    while (now_ < end) {
      if (fds_.size() == 1) {
        receive(0, 0);  // blocking, as in a client
        if (!idle_.empty()) send_batch(0, now_);
        idle_.clear();
        continue;
      }
      now_ = Clock::now();
      epoll.wait(1000, [&](std::size_t i) {
        if (++connections_[i].unread < unread_limit_) {
          answered(i);
        } else {
          receive(i, MSG_DONTWAIT);
        }
      });
      for (const std::size_t i : idle_) send_batch(i, Clock::now());
      idle_.clear();
    }
    Figures figures;
    figures.server_seconds = processor_time(options_.server) - server_before;
    for (const int fd : fds_) ::close(fd);
    figures.operations = static_cast<double>(batches_) * options_.depth;
    figures.seconds = seconds_between(start, now_);
    sum_up(latencies_, figures);
    return figures;
  }

 private:
  struct Connection {
    Clock::time_point sent;
    std::size_t received = 0;
    std::size_t unread = 0;
  };

  static std::size_t unread_limit(const Options& options) {
    return options.op == "get" && options.depth == 1 && options.connections > 1 && options.value <= 1024 ? 8 : 1;
  }

  void send_batch(std::size_t i, Clock::time_point now) {
    connections_[i].sent = now;
    send_all(fds_[i], loads_[i].request);
  }

  void receive(std::size_t i, int flags) {
    auto& connection = connections_[i];
    const std::size_t missing = expected_.size() - connection.received;
    const ssize_t got = ::recv(fds_[i], buffer_.data(), missing, flags);
    if (got <= 0) die("the server closed the connection");
    const auto size = static_cast<std::size_t>(got);
    if (options_.op == "get" && std::memcmp(buffer_.data(), expected_.data() + connection.received, size) != 0) {
      die("not the answer that was expected");
    }
    connection.received += size;
    if (size < missing) {
      if (unread_limit_ > 1) die("the answers come in pieces");
      return;
    }
    connection.received = connection.unread = 0;
    answered(i);
  }

  void answered(std::size_t i) {
    ++batches_;
    now_ = Clock::now();
    if (latencies_.size() < latencies_.capacity()) {
      latencies_.push_back(std::chrono::duration<float, std::micro>(now_ - connections_[i].sent).count());
    }
    idle_.push_back(i);
  }

  const Options& options_;
  std::vector<int> fds_;
  std::vector<Connection> connections_;
  std::vector<std::size_t> idle_;  // answered, ready for the next batch
  std::vector<Exchange> loads_;
  std::size_t unread_limit_;
  std::string expected_;
  std::vector<char> buffer_;
  std::vector<float> latencies_;
  std::size_t batches_ = 0;
  Clock::time_point now_;
};

Figures run_storm(const Options& options) {
  const auto hello = greeting(options);
  std::vector<int> fds(static_cast<std::size_t>(options.connections));
  for (int& fd : fds) fd = new_socket();
  for (const int fd : fds) {
    // Keeps the search for free ports out of the measured time.
    const auto any = loopback(0);
    if (::bind(fd, reinterpret_cast<const sockaddr*>(&any), sizeof any) != 0) die_errno("bind");
  }
  std::vector<std::size_t> received(fds.size());
  std::vector<float> latencies;
  // Registered before connecting, to keep it out of the measured time; the first event reports "not connected".
  Epoll epoll(fds, EPOLLIN | EPOLLET);
  for (std::size_t seen = 0; seen < fds.size();) epoll.wait(1000, [&](std::size_t) { ++seen; });
  if (options.hold && ::kill(options.server, SIGSTOP) != 0) die_errno("--hold");
  const double server_before = processor_time(options.server);
  auto start = Clock::now();
  // The accept queue holds 4,096, so the kernel completes all of them.
  for (const int fd : fds) {
    connect_to(fd, options.port);
    send_all(fd, hello.request);
  }
  if (options.hold) {
    start = Clock::now();
    ::kill(options.server, SIGCONT);
  }
  const auto end = after(start, options.seconds);
  std::size_t done = 0;
  auto now = Clock::now();
  while (done < fds.size() && now < end) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - now).count();
    epoll.wait(static_cast<int>(left), [&](std::size_t i) {
      char got[16];
      const ssize_t size = ::recv(fds[i], got, hello.answer.size() - received[i], MSG_DONTWAIT);
      if (size < 0 && errno == EAGAIN) return;
      if (size <= 0) die("the server closed the connection");
      if (std::memcmp(got, hello.answer.data() + received[i], static_cast<std::size_t>(size)) != 0) {
        die("not the answer that was expected");
      }
      received[i] += static_cast<std::size_t>(size);
      if (received[i] < hello.answer.size()) return;
      ++done;
      latencies.push_back(std::chrono::duration<float, std::micro>(Clock::now() - start).count());
    });
    now = Clock::now();
  }
  Figures figures;
  figures.server_seconds = processor_time(options.server) - server_before;
  for (const int fd : fds) ::close(fd);
  figures.operations = static_cast<double>(done);
  figures.seconds = seconds_between(start, now);
  sum_up(latencies, figures);
  return figures;
}

/// Repeats one barrier of all clients, with new keys each round.
class Barrier {
 public:
  explicit Barrier(const Options& options)
      : options_(options), fds_(open_all(options)), counted_(fds_.size()), epoll_(fds_) {}

  Figures run() {
    std::vector<float> times;
    const double server_before = processor_time(options_.server);
    const auto start = Clock::now();
    const auto end = after(start, options_.seconds);
    auto now = start;
    while (now < end) {
      const auto began = now;
      one_round(static_cast<int>(times.size()));
      now = Clock::now();
      times.push_back(std::chrono::duration<float, std::micro>(now - began).count());
    }
    Figures figures;
    figures.server_seconds = processor_time(options_.server) - server_before;
    for (const int fd : fds_) ::close(fd);
    figures.operations = static_cast<double>(times.size());
    figures.seconds = seconds_between(start, now);
    sum_up(times, figures);
    return figures;
  }

 private:
  void one_round(int round) {
    const std::string name = "/barrier/" + std::to_string(::getpid()) + "/" + std::to_string(round);
    const std::string count_in = '\x04' + field(name + "/count") + number(std::int64_t{1});
    const std::string wait = '\x06' + number(std::uint64_t{1}) + field(name + "/flag");
    const std::string open_and_wait = '\x01' + field(name + "/flag") + field("1") + wait;
    std::fill(counted_.begin(), counted_.end(), false);
    for (const int fd : fds_) send_all(fd, count_in);
    last_ = fds_.size();
    std::size_t passed = 0;
    while (passed < fds_.size()) {
      epoll_.wait(10'000, [&](std::size_t i) {
        char answer[8];
        const std::size_t size = counted_[i] ? 1 : sizeof answer;
        // Responses of 8 bytes arrive whole on the loopback; a split one would fail here.
        if (::recv(fds_[i], answer, size, MSG_DONTWAIT) != static_cast<ssize_t>(size))
          die("the server closed the connection");
        if (counted_[i]) {
          if (answer[0] != 0) die("a wait was cancelled");
          ++passed;
          return;
        }
        counted_[i] = true;
        std::int64_t sum = 0;
        std::memcpy(&sum, answer, sizeof sum);
        if (sum == options_.connections) last_ = i;
        counted_in_.push_back(i);
      });
      for (const std::size_t i : counted_in_) send_all(fds_[i], i == last_ ? open_and_wait : wait);
      counted_in_.clear();
    }
  }

  const Options& options_;
  std::vector<int> fds_;
  std::vector<char> counted_;
  std::vector<std::size_t> counted_in_;  // counted in, request not yet sent
  std::size_t last_ = 0;
  Epoll epoll_;
};

Figures run_idle(const Options& options) {
  const auto fds = open_all(options);
  std::printf("ready\n");
  std::fflush(stdout);
  char byte;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
  std::exit(0);
}

// -- the command line

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--json" || name == "--resp" || name == "--hold") {
      (name == "--json" ? options.json : name == "--resp" ? options.resp : options.hold) = true;
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
    } else if (name == "--server") {
      options.server = std::atoi(value);
    } else if (name == "--cpu") {
      options.cpu = std::atoi(value);
    } else {
      die("unknown option " + std::string(name));
    }
  }
  if (options.port == 0) die("--port is needed");
  if (options.hold && options.server <= 0) die("--hold needs --server");
  static constexpr std::string_view both[] = {"get", "storm", "idle"};
  static constexpr std::string_view store_only[] = {"add", "set", "barrier"};
  if (std::count(std::begin(both), std::end(both), options.op) == 0 &&
      (options.resp || std::count(std::begin(store_only), std::end(store_only), options.op) == 0)) {
    die("there is no --op " + options.op + (options.resp ? " with --resp" : ""));
  }
  return options;
}

Figures run(const Options& options) {
  if (options.op == "storm") return run_storm(options);
  if (options.op == "barrier") return Barrier(options).run();
  if (options.op == "idle") return run_idle(options);
  return Load(options).run();
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  if (options.cpu >= 0) {
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(static_cast<std::size_t>(options.cpu), &cpus);
    if (::sched_setaffinity(0, sizeof cpus, &cpus) != 0) die_errno("--cpu");
  }
  const Figures figures = run(options);
  std::printf(options.json ? "{\"op\": \"%s\", \"connections\": %d, \"depth\": %d, \"operations\": %.0f, "
                             "\"seconds\": %.6f, \"per_second\": %.0f, \"us_p50\": %.1f, \"us_p99\": %.1f, "
                             "\"samples\": %zu, \"server_seconds\": %.6f}\n"
                           : "%-7s %6d connections, depth %3d: %9.0f in %.3f s: %9.0f/s, p50 %.1f us, p99 %.1f us "
                             "(%zu), server %.3f s\n",
              options.op.c_str(), options.connections, options.depth, figures.operations, figures.seconds,
              figures.operations / figures.seconds, figures.median_us, figures.p99_us, figures.samples,
              figures.server_seconds);
  return 0;
}
