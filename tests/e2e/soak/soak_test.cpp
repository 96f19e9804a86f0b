// Everything at the same time, again and again: output that flows, clients that the store cuts off, strangers at every
// port, failures, restarts, several agents, signals. Lines must stay whole and complete, and nothing may be left. Made
// for the sanitizers: what a thread does to another one's memory shows here.
//
//   DDRUN_SOAK_SECONDS  run it for so long, and not for 5 seconds
//   DDRUN_SOAK_SEED     repeats the choices of a run (the seed is printed)

#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../job.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/test/ports.hpp"

using namespace ddrun::test;
using ddrun::UniqueFd;
using Random = std::mt19937_64;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t flood = 3000;  ///< lines of each worker that writes
constexpr auto deadline = 60s;       ///< for everything that a scene waits for, under any sanitizer

std::uint64_t setting(const char* variable, std::uint64_t otherwise) {
  const char* text = ::getenv(variable);
  return text != nullptr && *text != '\0' ? std::strtoull(text, nullptr, 10) : otherwise;
}

/// Connects to ports of the loopback as long as it lives and sends garbage.
class Strangers {
 public:
  explicit Strangers(std::uint64_t seed) : thread_([this, seed] { run(Random(seed)); }) {}
  ~Strangers() {
    ended_ = true;
    thread_.join();
  }
  Strangers(const Strangers&) = delete;
  Strangers& operator=(const Strangers&) = delete;

  void visit(int port) { port_ = port; }

 private:
  void run(Random random) {
    while (!ended_) {
      if (port_ > 0) knock(random);
      std::this_thread::sleep_for(1ms);  // as many as a scan of ports, not as a flood
    }
  }

  void knock(Random& random) const {
    const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(port_.load()));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (!fd || (::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0 && errno != EINPROGRESS)) return;
    std::string words(random() % 200, '\0');
    for (char& c : words) c = static_cast<char>(random());
    if (random() % 2 == 0) words.insert(0, "GET / HTTP/1.1\r\n");
    [[maybe_unused]] const ssize_t n = ::send(fd.get(), words.data(), words.size(), MSG_NOSIGNAL);
  }

  std::atomic<int> port_{0};
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

/// "[rank] line N of rank R xxx": counts them by rank; reports torn lines and lines out of order.
class Lines {
 public:
  void read(const std::string& text) {
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = text.find('\n', at);
      if (end == std::string::npos) return tell("not a whole line: ", text.substr(at));
      const std::string line = text.substr(at, end - at);
      at = end + 1;
      unsigned prefix = 0;
      unsigned long number = 0;
      unsigned rank = 0;
      if (line.starts_with("ddrun: ") || line.starts_with("  ")) continue;
      if (std::sscanf(line.c_str(), "[%u] line %lu of rank %u ", &prefix, &number, &rank) != 3 || prefix != rank ||
          line.size() != 4 + 99 || line.find_first_not_of('x', line.find(" x") + 1) != std::string::npos) {
        tell("a torn line: ", line);
      } else if (number == 0) {
        counts_[rank] = 1;  // another attempt
      } else if (number != counts_[rank]++) {
        tell("lines are missing before: ", line);
      }
    }
  }

  [[nodiscard]] std::size_t of(unsigned rank) { return counts_[rank]; }
  [[nodiscard]] const std::string& problem() const { return problem_; }

 private:
  void tell(const char* what, const std::string& line) {
    if (problem_.empty()) problem_ = what + line.substr(0, 300);
  }
  std::map<unsigned, std::size_t> counts_;
  std::string problem_;
};

Words in_one_pipe(const Words& argv) {
  Words words{"sh", "-c", "exec \"$@\" 2>&1", "sh"};
  words.insert(words.end(), argv.begin(), argv.end());
  return words;
}

/// Of all scenes that play at the same time.
int own_port() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  return free_port();
}

/// One job of one of the kinds below, and what is wrong with it: empty if nothing is.
class Scene {
 public:
  explicit Scene(std::uint64_t seed) : random_(seed), strangers_(seed + 1) {}

  std::string play() {
    try {
      switch (random_() % 4) {
        case 0: return success();
        case 1: return restarts();
        case 2: return stopped();
        default: return several_agents();
      }
    } catch (const std::exception& error) {
      return error.what();
    }
  }

 private:
  /// Half of the ranks write, the others are cut off meanwhile. Restarted attempts begin their lines anew.
  static Words busy(const Words& last) {
    const std::string lines = std::to_string(flood);
    Words verbs{"rank", "0",    "lines", lines,   ";",   "rank", "1",       "cut-off", "40",
                ";",    "rank", "2",     "lines", lines, ";",    "cut-off", "10"};
    verbs.insert(verbs.end(), last.begin(), last.end());
    return verbs;
  }

  std::string success() {
    const int port = own_port();
    Run run(in_one_pipe(job({"-n4", "--master-port=" + std::to_string(port)}, busy({}))));
    strangers_.visit(port);
    return judge(run, 0, true);
  }

  std::string restarts() {
    const int port = own_port();
    const Words verbs = busy(
        {"attempt", "0", "rank", "3", "exit", "3", ";", ";", "attempt", "1", "rank", "1", "signal", "SEGV", ";", ";"});
    Run run(in_one_pipe(
        job({"-n4", "--max-restarts=2", "--shutdown-timeout=20", "--master-port=" + std::to_string(port)}, verbs)));
    strangers_.visit(port);
    return judge(run, 0, true);
  }

  std::string stopped() {
    const int port = own_port();
    Run run(in_one_pipe(job({"-n4", "--master-port=" + std::to_string(port)}, busy({"forever"}))));
    strangers_.visit(port);
    if (!run.wait_for_out("[0] line " + std::to_string(random_() % flood) + " ", deadline))
      return "nothing was written";
    const int signals[] = {SIGTERM, SIGINT, SIGHUP};
    run.signal(signals[random_() % std::size(signals)]);
    return judge(run, {}, false);
  }

  std::string several_agents() {
    const int port = own_port();
    RunOptions options;
    options.env = {{"DDRUN_SECRET", "a secret for tests only"}, {"XDG_CONFIG_HOME", "/proc/no-such-folder"}};
    const auto argv = [&](const char* more) {
      return in_one_pipe(job({"--rdzv-endpoint=127.0.0.1:" + std::to_string(port), "--nnodes=2", "-n2",
                              "--max-restarts=1", "--label=rank", more},
                             busy({"attempt", "0", "rank", "3", "exit", "3", ";", ";"})));
    };
    Run first(argv("--node-rank=0"), options);
    Run second(argv("--node-rank=1"), options);
    strangers_.visit(port);
    // Both are read at the same time: an agent whose output is not read keeps the other one waiting.
    auto other = std::async(std::launch::async, [&] { return judge(second, 0, false); });
    const std::string problem = judge(first, 0, false);
    const std::string of_other = other.get();
    return problem.empty() ? of_other : problem;
  }

  /// `code`: none if any will do. `all_lines`: ranks 0 and 2 have written theirs to the end.
  static std::string judge(Run& run, std::optional<int> code, bool all_lines) {
    const Outcome outcome = run.wait(deadline);
    if (!run.all_gone(deadline)) return "something was left behind";
    const auto shown = [&] { return "\n" + outcome.out.substr(0, 200) + "\n...\n" + tail(outcome.out) + outcome.err; };
    if (has(outcome.out, "Sanitizer") || has(outcome.err, "Sanitizer")) return "a sanitizer complained:" + shown();
    if (code && outcome.code() != *code) return "it ended with " + std::to_string(outcome.code()) + shown();
    Lines lines;
    lines.read(outcome.out);
    if (!lines.problem().empty()) return lines.problem() + shown();
    for (const unsigned rank : {0U, 2U}) {
      if (all_lines && lines.of(rank) != flood)
        return "rank " + std::to_string(rank) + ": " + std::to_string(lines.of(rank)) + " lines" + shown();
    }
    return {};
  }

  static std::string tail(const std::string& text) {
    return text.substr(text.size() - std::min<std::size_t>(text.size(), 3000));
  }

  Random random_;
  Strangers strangers_;
};

}  // namespace

TEST_CASE("Output, refusals, strangers, failures and signals together tear and lose nothing") {
  const std::uint64_t seconds = setting("DDRUN_SOAK_SECONDS", 5);
  const std::uint64_t seed = setting("DDRUN_SOAK_SEED", std::random_device()() % 1'000'000);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  std::printf("DDRUN_SOAK_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::fflush(stdout);

  std::mutex mutex;
  std::vector<std::string> failures;
  std::atomic<std::uint64_t> played{0};
  std::atomic<bool> enough{false};
  const auto lane = [&] {
    do {
      const std::uint64_t number = played++;
      const std::string problem = Scene(seed + 1000 * number).play();
      const std::lock_guard lock(mutex);
      if (!problem.empty()) failures.push_back("scene " + std::to_string(number) + ": " + problem);
      enough = failures.size() >= 3;
    } while (std::chrono::steady_clock::now() < end && !enough);
  };
  std::vector<std::thread> lanes;
  for (int i = 0; i < 3; ++i) lanes.emplace_back(lane);
  for (auto& thread : lanes) thread.join();
  std::printf("%llu scenes\n", static_cast<unsigned long long>(played.load()));

  for (const auto& failure : failures) UNSCOPED_INFO(failure);
  CHECK(failures.empty());
}
