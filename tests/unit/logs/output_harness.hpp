#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddrun/base/unique_fd.hpp"
#include "ddrun/logs/output.hpp"
#include "ddrun/test/catch.hpp"

namespace ddrun::test {

/// Reads all available bytes without blocking.
inline std::string read_now(int fd) {
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  std::string text;
  char buffer[65536];
  for (;;) {
    const ssize_t count = ::read(fd, buffer, sizeof buffer);
    if (count > 0) text.append(buffer, static_cast<std::size_t>(count));
    else if (count == 0 || errno != EINTR) return text;
  }
}

inline void put(const UniqueFd& fd, std::string_view text) { REQUIRE(write_all(fd.get(), text.data(), text.size())); }

/// For writing threads: no assertion, which only the test's thread may use.
inline void push(const UniqueFd& fd, std::string_view text) { write_all(fd.get(), text.data(), text.size()); }

/// An Output whose consoles are pipes that the test reads. The test writes in place of workers.
struct OutputHarness {
  explicit OutputHarness(int workers, std::function<void(logs::OutputOptions&)> adjust = {}) {
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGXFSZ, SIG_IGN);
    out_pipe = make_pipe().value();
    err_pipe = make_pipe().value();
    options.hostname = "node7";
    options.run_id = "job";
    options.places.clear();
    for (int i = 0; i < workers; ++i) options.places.push_back({0, i, i});
    options.console_out = out_pipe.write.get();
    options.console_err = err_pipe.write.get();
    if (adjust) adjust(options);
    for (int i = 0; i < workers; ++i) ranks.push_back(10 + i);  // that are not local ranks
    output = std::make_unique<logs::Output>(io.get_executor(), options);
  }

  ~OutputHarness() {
    if (output) output->remove_if_unused();
  }

  /// prepare, begin_attempt and open_streams, all of which must succeed.
  void start(int attempt = 0) {
    if (attempt == 0) check(output->prepare());
    check(output->begin_attempt(attempt, ranks));
    workers.clear();
    for (int slot = 0; slot < options.workers(); ++slot) {
      auto streams = output->open_streams(slot);
      if (!streams) FAIL(streams.error().message);
      workers.push_back(std::move(*streams));
    }
  }

  static void check(const Result<void>& result) {
    if (!result) FAIL(result.error().message);
  }

  /// Runs the loop, and collects what the consoles get, until `condition` holds; false after ten seconds.
  bool run_until(const std::function<bool()>& condition) {
    const Deadline deadline = Clock::now() + std::chrono::seconds(10);
    while (Clock::now() < deadline) {
      io.restart();
      while (io.poll() > 0) {
      }
      if (read_consoles) collect();
      if (condition()) return true;
      io.restart();
      io.run_one_for(std::chrono::milliseconds(5));
    }
    return false;
  }

  void collect() {
    shown_out += read_now(out_pipe.read.get());
    shown_err += read_now(err_pipe.read.get());
  }

  /// The last lines of a worker's stderr.
  std::vector<std::string> tail(int slot, std::size_t lines) const {
    output->drain_all();
    output->read_file_tails();
    std::vector<std::string> texts;
    for (const auto& line : output->stderr_tail(slot, lines)) texts.push_back(line.text);
    return texts;
  }

  /// Closes the workers' ends and ends the attempt; false on a timeout.
  bool end() {
    workers.clear();
    bool done = false;
    output->async_end_attempt([&] { done = true; });
    CHECK_FALSE(done);  // never from within
    const bool ended = run_until([&] { return done; });
    if (read_consoles) collect();
    return ended;
  }

  boost::asio::io_context io;
  Pipe out_pipe;
  Pipe err_pipe;
  logs::OutputOptions options;
  std::vector<int> ranks;  ///< by slot
  std::unique_ptr<logs::Output> output;
  std::vector<logs::ChildStreams> workers;
  bool read_consoles = true;
  std::string shown_out;
  std::string shown_err;
};

}  // namespace ddrun::test
