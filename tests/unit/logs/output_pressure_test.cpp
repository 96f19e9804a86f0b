// Slow and closed consoles: back pressure, timeouts, losses.

#include <sys/ioctl.h>
#include <sys/resource.h>

#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <thread>

#include "ddrun/base/proc.hpp"
#include "output_harness.hpp"

using namespace ddrun;
using namespace ddrun::logs;
using namespace ddrun::test;

namespace {

/// Makes a worker's stdout non-blocking and writes until the worker would block.
std::size_t write_until_full(const UniqueFd& fd, std::string_view line) {
  ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) | O_NONBLOCK);
  std::size_t total = 0;
  for (;;) {
    const ssize_t count = ::write(fd.get(), line.data(), line.size());
    if (count <= 0) return total;
    total += static_cast<std::size_t>(count);
  }
}

double cpu_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

}  // namespace

TEST_CASE("a console without a reader blocks the workers and not the loop") {
  OutputHarness h(4);
  h.read_consoles = false;
  h.start();
  const std::string line = std::string(99, 'x') + "\n";
  std::size_t written = 0;
  // Until nothing more can be written although the loop runs: the workers are blocked.
  for (int idle = 0; idle < 20;) {
    std::size_t now = 0;
    for (const auto& worker : h.workers) now += write_until_full(worker.out, line);
    h.io.restart();
    h.io.run_for(std::chrono::milliseconds(2));
    idle = now == 0 ? idle + 1 : 0;
    written += now;
    REQUIRE(written < 16'000'000);
  }
  // The console's queue and pipe hold 1 MiB each, each worker's pipe 256 KiB (docs/output.md).
  CHECK(written > 2'000'000);
  CHECK(written < 4'000'000);

  SECTION("timers run on time and the loop is idle") {
    boost::asio::steady_timer timer(h.io, std::chrono::milliseconds(200));
    bool rang = false;
    timer.async_wait([&](auto) { rang = true; });
    const double before = cpu_seconds();
    std::size_t handlers = 0;
    while (!rang) {
      h.io.restart();
      handlers += h.io.run_one_for(std::chrono::seconds(5));
    }
    CHECK(handlers == 1);
    CHECK(cpu_seconds() - before < 0.1);
  }
  SECTION("all output comes once it is read") {
    h.read_consoles = true;
    CHECK(h.end());
    std::size_t expected = 0;
    for (std::size_t at = 0; (at = h.shown_out.find('\n', at)) != std::string::npos; ++at) ++expected;
    CHECK(h.shown_out.size() >= written + 5 * (written / line.size()));
    CHECK(h.output->losses().console_bytes == 0);
    CHECK(expected >= written / line.size());
  }
  SECTION("other consoles are not blocked") {
    put(h.workers[0].err, "trouble\n");
    CHECK(h.run_until([&] { return read_now(h.err_pipe.read.get()) == "[10] trouble\n"; }));
  }
  // What was shown and what was lost add up to what was written.
  const auto check_all_is_accounted_for = [&] {
    h.output->close();
    h.collect();
    const auto losses = h.output->losses();
    CHECK(losses.console_error == "not read in time");
    CHECK(losses.console_bytes > 0);
    const std::size_t shown = h.shown_out.size();
    // Lines that have been queued have a prefix of five bytes, those that are lost in a pipe have none.
    CHECK(shown + losses.console_bytes >= written);
    CHECK(shown + losses.console_bytes <= written + 5 * (written / line.size()) + 5);
    CHECK(shown > 0);
  };
  SECTION("with a timeout the end of the attempt does not wait for a blocked console, and losses are counted") {
    h.output->set_flush_timeout(std::chrono::milliseconds(20));
    CHECK(h.end());
    check_all_is_accounted_for();
  }
  SECTION("the timeout may be set after the end was requested") {
    h.workers.clear();
    bool done = false;
    h.output->async_end_attempt([&] { done = true; });
    h.io.restart();
    h.io.run_for(std::chrono::milliseconds(20));
    CHECK_FALSE(done);
    SECTION("a timeout") { h.output->set_flush_timeout(std::chrono::milliseconds(20)); }
    SECTION("an abort") { h.output->abort_flush(); }
    CHECK(h.run_until([&] { return done; }));
    check_all_is_accounted_for();
  }
  SECTION("a flush with a timeout ends in time") {
    h.output->set_flush_timeout(std::chrono::milliseconds(20));
    bool done = false;
    h.output->async_flush([&] { done = true; });
    CHECK(h.run_until([&] { return done; }));
  }
  SECTION("a reader that makes progress gets everything in spite of the timeout") {
    h.workers.clear();
    bool done = false;
    h.output->set_flush_timeout(std::chrono::milliseconds(200));
    h.output->async_end_attempt([&] { done = true; });
    // 64 KiB at a time: in total much longer than the timeout.
    const Deadline deadline = Clock::now() + std::chrono::seconds(20);
    const auto began = Clock::now();
    while (!done && Clock::now() < deadline) {
      h.io.restart();
      h.io.run_for(std::chrono::milliseconds(30));
      std::string part(65536, ' ');
      ::fcntl(h.out_pipe.read.get(), F_SETFL, O_NONBLOCK);
      const ssize_t count = ::read(h.out_pipe.read.get(), part.data(), part.size());
      if (count > 0) h.shown_out.append(part, 0, static_cast<std::size_t>(count));
    }
    CHECK(done);
    CHECK(Clock::now() - began > std::chrono::milliseconds(400));
    h.output->close();
    h.collect();
    CHECK(h.output->losses().console_bytes == 0);
    CHECK(h.shown_out.size() >= written);
  }
  SECTION("closing the console unblocks the workers") {
    h.out_pipe.read.reset();
    CHECK(h.run_until([&] {
      for (const auto& worker : h.workers) written += write_until_full(worker.out, line);
      return written > 20'000'000;
    }));
    CHECK(h.output->losses().unread_bytes > 10'000'000);
    CHECK(h.output->losses().console_bytes == 0);
  }
}

TEST_CASE("endless lines of many workers are broken before they need too much memory", "[full]") {
  OutputHarness h(3);
  h.start();
  constexpr std::size_t each = std::size_t{12} << 20U;  // shorter than the longest line of one stream
  std::vector<std::thread> writers;
  writers.reserve(h.workers.size());
  for (const auto& worker : h.workers) {
    writers.emplace_back([&] { push(worker.out, std::string(each, 'x')); });
  }
  std::atomic<bool> written{false};
  std::thread all([&] {
    for (std::thread& writer : writers) writer.join();
    written = true;
  });
  CHECK(h.run_until([&] { return written.load(); }));
  all.join();
  // 36 MiB have come in, of which 32 may be held.
  CHECK(h.run_until([&] { return h.shown_out.size() > std::size_t{3} << 20U; }));
  CHECK(h.end());
  std::size_t bytes = 0;
  for (const char c : h.shown_out) bytes += c == 'x' ? 1 : 0;
  CHECK(bytes == 3 * each);
  CHECK(h.output->losses().console_bytes == 0);
}

TEST_CASE("pipes of workers that fill them grow, up to a share of what their user may have") {
  OutputHarness h(70);
  h.start();
  const auto sizes = [&] {
    std::map<int, int> count;
    for (const auto& worker : h.workers) ++count[::fcntl(worker.out.get(), F_GETPIPE_SZ)];
    return count;
  };
  constexpr std::size_t lines = 1024;
  std::string block;
  while (block.size() < 64 * lines) block += std::string(63, 'x') + "\n";
  put(h.workers[0].err, "a line\n");
  for (const auto& worker : h.workers) put(worker.out, block);
  CHECK(h.run_until([&] { return h.output->lines_shown() == 70 * lines + 1; }));
  const long pages = read_number("/proc/sys/fs/pipe-user-pages-soft").value();
  const int large = std::min(70, static_cast<int>(pages * ::sysconf(_SC_PAGESIZE) / 4 / 262144));
  CHECK(sizes()[262144] == large);
  CHECK(::fcntl(h.workers[0].err.get(), F_GETPIPE_SZ) == 65536);
  SECTION("those of the next attempt as well") {
    h.start(1);
    for (const auto& worker : h.workers) put(worker.out, block);
    CHECK(h.run_until([&] { return h.output->lines_shown() == 140 * lines + 1; }));
    CHECK(sizes()[262144] == large);
  }
}

TEST_CASE("memory for a burst of output is used until it is trimmed, and then again") {
  int bursts = 0;
  OutputHarness h(2, [&](OutputOptions& options) { options.on_first_output = [&] { ++bursts; }; });
  h.start();
  CHECK(bursts == 0);
  for (const int expected : {1, 2}) {
    for (const char* line : {"one\n", "two\n"}) {
      put(h.workers[0].out, line);
      CHECK(h.run_until([&] { return std::exchange(h.shown_out, "") == std::string("[10] ") + line; }));
    }
    CHECK(bursts == expected);
    h.output->trim();
  }
}

TEST_CASE("a noisy worker does not starve the others") {
  OutputHarness h(2);
  h.start();
  std::atomic<bool> stop{false};
  std::thread noisy([&] {
    const std::string burst = std::string(65'535, 'n') + "\n";
    while (!stop) push(h.workers[0].out, burst);
  });
  CHECK(h.run_until([&] { return h.shown_out.size() > 1'000'000; }));
  const std::size_t before = h.shown_out.size();
  put(h.workers[1].out, "quiet\n");
  CHECK(h.run_until([&] { return h.shown_out.find("[11] quiet\n") != std::string::npos; }));
  CHECK(h.shown_out.find("[11] quiet\n") - before < 8'000'000);
  stop = true;
  CHECK(h.run_until([&] { return true; }));
  // The writer may be blocked in a write: keep reading until it returns.
  std::thread joiner([&] {
    noisy.join();
    h.workers[0].out.reset();
    stop = false;
  });
  CHECK(h.run_until([&] { return !stop; }));
  joiner.join();
}

TEST_CASE("a worker that closes its output early does not affect the others") {
  OutputHarness h(2);
  h.start();
  h.workers[0].out.reset();
  h.workers[0].err.reset();
  put(h.workers[1].out, "here\n");
  CHECK(h.run_until([&] { return h.shown_out == "[11] here\n"; }));
  const double before = cpu_seconds();
  h.io.restart();
  CHECK(h.io.run_for(std::chrono::milliseconds(100)) == 0);
  CHECK(cpu_seconds() - before < 0.05);
  CHECK(h.end());
}

TEST_CASE("an output may be destroyed while its pipes are watched") {
  OutputHarness h(8);
  h.start();
  for (const auto& worker : h.workers) put(worker.out, "text without end");
  bool called = false;
  h.output->async_end_attempt([&] { called = true; });
  h.output->remove_if_unused();
  h.output.reset();
  h.io.restart();
  h.io.run_for(std::chrono::milliseconds(50));
  CHECK_FALSE(called);
}
