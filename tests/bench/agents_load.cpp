// Simulates many agents of one job, from one thread; prints messages and times.
//
//   agents_load --port P --agents N [--secret TEXT] [--idle SECONDS] [--page] [--hold PID] [--json]
//
// N connections from addresses of the loopback network (127.0.0.0/8, 250 agents on each) do the handshake with the
// coordinator on port P of 127.0.0.1, authenticated if there is a secret, join one job of N nodes, and
//
//   join   until the last one has its ranks (START), from the first connect on
//   idle   only PING and PONG for this many seconds
//   page   with --page: one asks where the ranks are, and each agent answers with the stack of its 8; until that one
//   has
//          all answers, and until it has merged them to the text of a page
//   fail   one agent sends FAILED; until the last one has STOP
//   end    all send STOPPED; until the last one has its VERDICT
//
// Packets are those of all control connections, as counted by the kernel (TCP_INFO). With --hold the coordinator's
// process is stopped until all have connected, so that they join at the same moment. With --step it prints "phase NAME"
// to standard error before each phase and waits for a line on standard input.
#include <arpa/inet.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "codec.hpp"
#include "ddrun/inspect/stack_page.hpp"
#include "frames.hpp"
#include "handshake.hpp"

namespace {

using namespace ddrun::rendezvous;
using Clock = std::chrono::steady_clock;

struct Options {
  std::uint16_t port = 0;
  std::size_t agents = 1000;
  std::string secret;
  double idle = 0;
  bool page = false;
  pid_t hold = 0;
  bool json = false;
  bool step = false;
};

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "agents_load: %s\n", what.c_str());
  std::exit(1);
}

[[noreturn]] void die_errno(const char* what) { die(std::string(what) + ": " + std::strerror(errno)); }

constexpr int local_world_size = 8;

/// KiB, of a line in /proc/self/status.
double own_status(const std::string& name) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    double kibibytes = 0;
    if (word == name + ":" && file >> kibibytes) return kibibytes;
  }
  die("no " + name + " in /proc/self/status");
}

/// What an agent sends of its ranks, which all wait in a collective.
std::string share_of_agent(std::size_t number) {
  namespace inspect = ddrun::inspect;
  const auto python = std::make_shared<const inspect::Module>(inspect::Module{"/usr/bin/python3.11", 4711, 1, 1});
  const auto torch = std::make_shared<const inspect::Module>(
      inspect::Module{"/opt/venv/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so", 4711, 1, 2});
  inspect::StackPage page;
  const int base_rank = static_cast<int>(number) * local_world_size;
  for (int i = 0; i < local_world_size; ++i) {
    inspect::RankStacks& rank = page.ranks.emplace_back();
    rank.rank = base_rank + i;
    rank.pid = 4711 + i;
    rank.program = "python3";
    rank.cpu = 1;
    inspect::ThreadStack& main = rank.threads.emplace_back();
    main.tid = rank.pid;
    main.name = "python3";
    main.state = 'S';
    main.doing = "receives from 10.0.0.2:4711";
    main.on_socket = true;
    for (int depth = 0; depth < 20; ++depth) {
      const bool is_own = depth >= 15;
      main.python.push_back({is_own ? "Trainer.run_" + std::to_string(depth) : "DistributedDataParallel.forward",
                             is_own ? "/job/src/train.py" : "/opt/venv/lib/torch/nn/parallel/distributed.py",
                             100 + (depth == 0 ? static_cast<int>(number % 10) : depth),
                             {}});
      if (is_own) main.python.back().numbers = {{"step", 1000}, {"epoch", 3}};
    }
    for (int depth = 0; depth < 6; ++depth) {
      main.native.push_back({depth < 4 ? torch : python, static_cast<std::uint64_t>(0x1000 + depth),
                             "c10d::ProcessGroupGloo::AsyncWork::" + std::to_string(depth)});
    }
  }
  return inspect::share_of({}, base_rank, inspect::share_text(std::move(page), false, std::size_t{32} << 10U));
}

struct Agent {
  int fd = -1;
  std::size_t number = 0;
  std::unique_ptr<AgentHandshake> handshake;
  std::optional<SessionKeys> keys;
  std::string in;
  Round round = 0;
};

struct Traffic {
  std::uint64_t in = 0, out = 0;  ///< messages
};

class Load {
 public:
  explicit Load(const Options& options) : options_(options) {
    if (!options.secret.empty()) secret_.emplace(options.secret);
    epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
    agents_.resize(options.agents);
  }

  void join() {
    if (options_.hold != 0 && ::kill(options_.hold, SIGSTOP) != 0) die_errno("cannot stop the coordinator");
    begin("join");
    for (std::size_t i = 0; i < agents_.size(); ++i) {
      connect(agents_[i], i);
      if (options_.hold == 0 && i % 64 == 63) run_once(0);
    }
    if (options_.hold != 0) {
      begin("join");  // measured without connecting
      ::kill(options_.hold, SIGCONT);
    }
    run_until(started_, "all have started");
    end();
  }

  void idle() {
    begin("idle");
    const auto before = packets();
    const auto until = Clock::now() + std::chrono::duration<double>(options_.idle);
    while (Clock::now() < until) run_once(20);
    const auto after = packets();
    idle_.sent = (after.sent - before.sent) / options_.idle;
    idle_.received = (after.received - before.received) / options_.idle;
    end();
  }

  void page() {
    begin("page");
    const double before = own_status("VmRSS");
    std::ofstream("/proc/self/clear_refs") << "5";  // VmHWM counts anew
    send_message(agents_[0], Ask{1});
    while (!page_ended_) run_once(1000);
    end();
    begin("merge");
    for (const auto& [node_rank, share] : shares_) {
      if (!ddrun::inspect::add_share(page_, share.second, share.first)) die("a share cannot be read");
      page_bytes_ += share.second.size();
    }
    for (const auto& rank : page_.ranks) page_ranks_ += 1 + rank.also.size();
    ddrun::inspect::merge_equal(page_);
    if (ddrun::inspect::short_text(page_, "").empty()) die("the page is empty");
    end();
    page_memory_ = own_status("VmHWM") - before;
    if (page_ranks_ != agents_.size() * local_world_size) die("ranks are missing on the page");
  }

  void fail() {
    begin("fail");
    Failed failed;
    failed.round = agents_[0].round;
    failed.code = 1;
    send_message(agents_[0], failed);
    run_until(stopped_, "all have received STOP");
    end();
  }

  void finish() {
    begin("end");
    for (auto& agent : agents_) send_message(agent, Stopped{agent.round});
    run_until(ended_, "all have the verdict");
    end();
  }

  void print() const {
    if (options_.json) {
      std::printf("{\"agents\": %zu", agents_.size());
      for (const auto& phase : phases_) {
        std::printf(", \"%s_s\": %.6f, \"%s_messages_in\": %llu, \"%s_messages_out\": %llu", phase.name, phase.seconds,
                    phase.name, static_cast<unsigned long long>(phase.traffic.in), phase.name,
                    static_cast<unsigned long long>(phase.traffic.out));
      }
      if (options_.page) std::printf(", \"page_bytes\": %zu, \"page_memory\": %.0f", page_bytes_, page_memory_ * 1024);
      std::printf(", \"idle_sent\": %.3f, \"idle_received\": %.3f}\n", idle_.sent, idle_.received);
      return;
    }
    const auto count = static_cast<double>(agents_.size());
    for (const auto& phase : phases_) {
      std::printf("%-5s %9.3f ms   to each agent %.3f messages, from each %.3f\n", phase.name, phase.seconds * 1e3,
                  static_cast<double>(phase.traffic.in) / count, static_cast<double>(phase.traffic.out) / count);
    }
    if (options_.page) {
      std::printf("page  %zu ranks in %.1f KiB, for which the one that asks needs %.1f MiB\n", page_ranks_,
                  static_cast<double>(page_bytes_) / 1024, page_memory_ / 1024);
    }
    if (options_.idle <= 0) return;
    std::printf("idle  each agent sends %.3f packets a second and receives %.3f\n", idle_.sent, idle_.received);
  }

 private:
  struct Phase {
    const char* name;
    double seconds;
    Traffic traffic;
  };

  void begin(const char* name) {
    if (options_.step && phase_ != name) {
      std::fprintf(stderr, "phase %s\n", name);
      char line[16];
      (void)!::read(STDIN_FILENO, line, sizeof line);
    }
    phase_ = name;
    traffic_ = {};
    began_ = Clock::now();
  }
  void end() { phases_.push_back({phase_, std::chrono::duration<double>(Clock::now() - began_).count(), traffic_}); }

  void connect(Agent& agent, std::size_t number) {
    agent.number = number;
    agent.fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (agent.fd < 0) die_errno("no more sockets (ulimit -n)");
    const int on = 1;
    ::setsockopt(agent.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    ::setsockopt(agent.fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    sockaddr_in from{}, to{};
    from.sin_family = to.sin_family = AF_INET;
    // From different addresses, as the coordinator limits pending handshakes per address.
    from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 256 + static_cast<std::uint32_t>(number % 1000));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(options_.port);
    if (::bind(agent.fd, reinterpret_cast<sockaddr*>(&from), sizeof from) != 0) die_errno("bind");
    if (::connect(agent.fd, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0 && errno != EINPROGRESS) {
      die_errno("connect");
    }
    agent.handshake = std::make_unique<AgentHandshake>(secret_ ? &*secret_ : nullptr, random_nonce());
    epoll_event event{};
    event.events = EPOLLOUT;
    event.data.ptr = &agent;
    ::epoll_ctl(epoll_, EPOLL_CTL_ADD, agent.fd, &event);
  }

  void run_until(const std::size_t& counter, const char* what) {
    const auto limit = Clock::now() + std::chrono::seconds(120);
    while (counter < agents_.size()) {
      run_once(1000);
      if (Clock::now() > limit)
        die(std::string("not within two minutes: ") + what + " (" + std::to_string(counter) + ")");
    }
  }

  void run_once(int timeout) {
    epoll_event events[256];
    const int count = ::epoll_wait(epoll_, events, 256, timeout);
    for (int i = 0; i < count; ++i) {
      Agent& agent = *static_cast<Agent*>(events[i].data.ptr);
      if ((events[i].events & EPOLLOUT) != 0) connected(agent);
      else receive(agent);
    }
  }

  void connected(Agent& agent) {
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(agent.fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) die(std::string("cannot connect: ") + std::strerror(error));
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = &agent;
    ::epoll_ctl(epoll_, EPOLL_CTL_MOD, agent.fd, &event);
    send(agent, agent.handshake->begin());
  }

  void send(Agent& agent, std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(agent.fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0) die_errno("send");
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
  }

  void send_message(Agent& agent, const FromAgent& message) {
    std::string payload, bytes;
    const auto type = encode(message, payload);
    agent.keys->sealer.seal(type, payload, bytes);
    ++traffic_.out;
    send(agent, bytes);
  }

  void receive(Agent& agent) {
    static char buffer[64 * 1024];
    const ssize_t got = ::recv(agent.fd, buffer, sizeof buffer, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
      if (ended_ > 0) return (void)::epoll_ctl(epoll_, EPOLL_CTL_DEL, agent.fd, nullptr);
      die("the coordinator closed the connection of agent " + std::to_string(agent.number));
    }
    std::string_view bytes(buffer, static_cast<std::size_t>(got));
    if (agent.handshake) {
      std::string out;
      const auto state = agent.handshake->feed(bytes, out);
      if (!out.empty()) send(agent, out);
      if (state == HandshakeState::in_progress) return;
      if (state != HandshakeState::done) die("the handshake failed, number " + std::to_string(static_cast<int>(state)));
      agent.keys.emplace(agent.handshake->keys());
      agent.handshake.reset();
      send_message(agent, joining(agent));
    }
    agent.in.append(bytes);
    std::string_view left = agent.in;
    for (FrameOpener::Frame frame; agent.keys->opener.next(left, frame) == FrameOpener::Status::whole;) {
      const auto message = decode_from_coordinator(frame.type, frame.payload);
      if (!message) die(message.error().message);
      left.remove_prefix(frame.size);
      ++traffic_.in;
      handle(agent, *message);
    }
    agent.in.erase(0, agent.in.size() - left.size());
  }

  [[nodiscard]] Join joining(const Agent& agent) const {
    const auto nodes = std::to_string(agents_.size());
    Join join;
    join.version = "bench";
    join.job_id = "bench";
    join.agent_id = "agent" + std::to_string(agent.number);
    join.host = "node" + std::to_string(agent.number);
    join.local_world_size = local_world_size;
    join.settings = {{"exit_skew_ms", ""},      {"grace_ms", "30000"},      {"join_timeout_ms", "600000"},
                     {"last_call_ms", "30000"}, {"max_nodes", nodes},       {"max_restarts", "0"},
                     {"min_nodes", nodes},      {"node_max_failures", "0"}, {"restart_backoff_ms", "0"},
                     {"restart_window_ms", ""}, {"same_cause", "0"}};
    return join;
  }

  void handle(Agent& agent, const FromCoordinator& message) {
    if (const auto* open = std::get_if<Open>(&message)) {
      send_message(agent, Opened{open->round, 29500});
    } else if (const auto* start = std::get_if<Start>(&message)) {
      agent.round = start->round;
      ++started_;
    } else if (std::holds_alternative<Stop>(message)) {
      ++stopped_;
    } else if (std::holds_alternative<VerdictMessage>(message)) {
      ++ended_;
    } else if (const auto* look = std::get_if<Look>(&message)) {
      send_message(agent, Stacks{look->number, true, share_of_agent(agent.number)});
    } else if (const auto* page = std::get_if<Page>(&message)) {
      page_ended_ = page->node_rank < 0;
      if (page_ended_ && !page->missing.empty()) die("an answer is missing: " + page->missing.front());
      if (page_ended_) return;
      auto& [host, share] = shares_[page->node_rank];
      host = page->host;
      share += page->part;
    } else if (const auto* ping = std::get_if<Ping>(&message)) {
      send_message(agent, Pong{ping->number});
    } else if (const auto* refused = std::get_if<Refused>(&message)) {
      die("refused: " + refused->why);
    }
  }

  static ddrun::inspect::StackPage whole_page() {
    ddrun::inspect::StackPage page;
    page.is_whole_job = true;
    return page;
  }

  struct Packets {
    double sent = 0, received = 0;  ///< per agent
  };
  [[nodiscard]] Packets packets() const {
    Packets packets;
    for (const auto& agent : agents_) {
      tcp_info info{};
      socklen_t size = sizeof info;
      if (::getsockopt(agent.fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) die_errno("TCP_INFO");
      packets.sent += info.tcpi_segs_out / static_cast<double>(agents_.size());
      packets.received += info.tcpi_segs_in / static_cast<double>(agents_.size());
    }
    return packets;
  }

  Options options_;
  std::optional<HmacKey> secret_;
  int epoll_ = -1;
  std::vector<Agent> agents_;
  std::size_t started_ = 0, stopped_ = 0, ended_ = 0;
  bool page_ended_ = false;
  std::map<int, std::pair<std::string, std::string>> shares_;  ///< host and answer, by node rank
  ddrun::inspect::StackPage page_ = whole_page();
  std::size_t page_bytes_ = 0, page_ranks_ = 0;
  double page_memory_ = 0;  ///< KiB
  const char* phase_ = "";
  Traffic traffic_;
  Clock::time_point began_;
  std::vector<Phase> phases_;
  Packets idle_;
};

Options read_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--json") {
      options.json = true;
    } else if (name == "--step") {
      options.step = true;
    } else if (name == "--page") {
      options.page = true;
    } else if (i + 1 == argc) {
      die(name + " is not known or needs a value");
    } else if (const std::string value = argv[++i]; name == "--port") {
      options.port = static_cast<std::uint16_t>(std::stoi(value));
    } else if (name == "--agents") {
      options.agents = std::stoul(value);
    } else if (name == "--secret") {
      options.secret = value;
    } else if (name == "--idle") {
      options.idle = std::stod(value);
    } else if (name == "--hold") {
      options.hold = std::stoi(value);
    } else {
      die(name + " is not known");
    }
  }
  if (options.port == 0 || options.agents == 0) die("--port and --agents are needed");
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const auto options = read_options(argc, argv);
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  Load load(options);
  load.join();
  if (options.idle > 0) load.idle();
  if (options.page) load.page();
  load.fail();
  load.finish();
  load.print();
}
