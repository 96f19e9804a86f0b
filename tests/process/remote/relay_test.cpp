// The relay at the remote end of ssh, with a head that does not read.
#include "ddrun/remote/relay.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <cstdio>
#include <iostream>
#include <vector>

#include "ddrun/job_socket/job_socket.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"
#include "ddrun/test/processes.hpp"
#include "protocol.hpp"
#include "remote_command.hpp"

using namespace ddrun;
using namespace ddrun::remote;
using ddrun::test::TemporaryDirectory;
using ddrun::test::wait_until;

namespace {

constexpr const char* build = "test";

struct Got {
  FrameType type;
  std::string payload;
};

/// A relay in a child process; the test is the head.
class Host {
 public:
  explicit Host(const std::function<int(const Bootstrap&, const HeadConnection&)>& node_main) {
    auto in = make_pipe();
    auto out = make_pipe();
    REQUIRE((in && out));
    const pid_t test = ::getpid();
    // Flush first: ThreadSanitizer would write the child's copy of the buffers in _exit().
    std::cout.flush();
    std::fflush(nullptr);
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != test) ::_exit(1);
      ::dup2(in->read.get(), STDIN_FILENO);
      ::dup2(out->write.get(), STDOUT_FILENO);
      for (UniqueFd* fd : {&in->read, &in->write, &out->read, &out->write}) fd->reset();
      RelayOptions options;
      options.build_id = build;
      ::_exit(run_relay(options, node_main));
    }
    to_ = std::move(in->write);
    from_ = std::move(out->read);
  }
  ~Host() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  void send(FrameType type, const std::string& payload = {}) const {
    WipedString frame;
    append_frame(frame, type, payload);
    REQUIRE(write_all(to_.get(), frame.data(), frame.size()));
  }
  void start(const Bootstrap& part = {}) const { send(FrameType::start, "the secret\n" + encode(part)); }
  /// The next thing that the relay sends breaks the connection.
  void stop_reading() { from_.reset(); }
  void signal(int number) const { ::kill(pid_, number); }
  /// Waits until the relay has said something.
  [[nodiscard]] bool is_up() const {
    pollfd ready{from_.get(), POLLIN, 0};
    return ::poll(&ready, 1, 20'000) == 1;
  }

  /// Reads until a frame of this type has come, or to end-of-file.
  void read_to(std::optional<FrameType> last) {
    read_until([last](const std::vector<Got>& all) {
      return last && std::any_of(all.begin(), all.end(), [&](const Got& one) { return one.type == *last; });
    });
  }
  /// Or to end-of-file.
  const std::vector<Got>& read_until(const std::function<bool(const std::vector<Got>&)>& is_enough) {
    const std::string marker = frames_marker(build);
    std::vector<char> chunk(64 << 10);
    for (ssize_t n; !is_enough(all_) && (n = ::read(from_.get(), chunk.data(), chunk.size())) > 0;) {
      std::string_view bytes(chunk.data(), static_cast<std::size_t>(n));
      if (!framed_) {
        greeting_ += bytes;
        const auto at = greeting_.find(marker);
        if (at == std::string::npos) continue;
        framed_ = true;
        bytes = std::string_view(greeting_).substr(at + marker.size());
      }
      REQUIRE(frames_.feed(bytes, [&](const Frame& frame) {
        all_.push_back({frame.type, std::string(frame.payload)});
      }));
    }
    return all_;
  }
  /// All frames until end-of-file.
  [[nodiscard]] const std::vector<Got>& read_all() {
    read_to({});
    return all_;
  }

 private:
  pid_t pid_ = -1;
  UniqueFd to_;
  UniqueFd from_;
  std::string greeting_;
  bool framed_ = false;
  FrameReader frames_;
  std::vector<Got> all_;
};

std::string of_type(const std::vector<Got>& all, FrameType type) {
  std::string text;
  for (const Got& one : all) {
    if (one.type == type) text += one.payload;
  }
  return text;
}

long empty_of_type(const std::vector<Got>& all, FrameType type) {
  return std::count_if(all.begin(), all.end(), [&](const Got& one) { return one.type == type && one.payload.empty(); });
}

/// Waits for a blocked signal.
bool receives(int signal, long seconds) {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, signal);
  const timespec limit{seconds, 0};
  return ::sigtimedwait(&set, nullptr, &limit) == signal;
}

std::string line(int number) { return std::to_string(number) + std::string(1000, '.') + "\n"; }

}  // namespace

TEST_CASE("Writing events never blocks on the head, and whole lines are dropped") {
  const TemporaryDirectory directory;
  constexpr int number = 30'000;
  Host host([done = directory.file("done")](const Bootstrap&, const HeadConnection& head) {
    const UniqueFd file(::open(head.events_path().c_str(), O_WRONLY | O_APPEND));
    for (int i = 0; i < number; ++i) {
      const std::string text = line(i);
      if (!write_all(file.get(), text.data(), text.size())) return 1;
    }
    ddrun::test::write_file(done, "done");
    return head.read_secret() == "the secret" ? 0 : 2;
  });
  host.start();
  // The head reads nothing.
  REQUIRE(wait_until([&] { return ddrun::test::read_file(directory.file("done")) == "done"; }));
  const auto all = host.read_all();
  CHECK(of_type(all, FrameType::ended) == "0");
  CHECK(empty_of_type(all, FrameType::events) == 1);
  CHECK(of_type(all, FrameType::report).empty());
  CHECK(empty_of_type(all, FrameType::report) == 0);
  const std::string events = of_type(all, FrameType::events);
  CHECK(events.size() > std::size_t{4} << 20U);
  CHECK(events.size() < std::size_t{10} << 20U);
  int last = -1;
  std::size_t wrong = 0;
  std::size_t at = 0;
  for (std::size_t end; (end = events.find('\n', at)) != std::string::npos; at = end + 1) {
    const int i = std::stoi(events.substr(at, 8));
    if (i <= last || events.compare(at, end + 1 - at, line(i)) != 0) ++wrong;
    last = i;
  }
  CHECK(at == events.size());
  CHECK(wrong == 0);
}

TEST_CASE("A report of any size arrives whole") {
  const std::string report(std::size_t{20} << 20U, 'r');
  Host host([&](const Bootstrap&, const HeadConnection& head) {
    const UniqueFd file(::open(head.report_path().c_str(), O_WRONLY));
    return write_all(file.get(), report.data(), report.size()) ? 0 : 1;
  });
  host.start();
  const auto all = host.read_all();
  CHECK(of_type(all, FrameType::ended) == "0");
  CHECK(of_type(all, FrameType::report) == report);
  CHECK(empty_of_type(all, FrameType::report) == 1);
  CHECK(of_type(all, FrameType::events).empty());
}

TEST_CASE("Signals that do not end a job do not end a host that waits for its part") {
  Host host([](const Bootstrap&, const HeadConnection&) { return 0; });
  REQUIRE(host.is_up());
  for (const int signal : {SIGUSR1, SIGUSR2, SIGRTMIN}) host.signal(signal);
  host.start();
  CHECK(of_type(host.read_all(), FrameType::ended) == "0");
}

TEST_CASE("A signal that comes with the part of the job waits until its ddrun handles signals") {
  Host host([](const Bootstrap&, const HeadConnection&) { return receives(SIGUSR1, 20) ? 0 : 1; });
  host.start();
  host.send(FrameType::signal, signal_payload(SIGUSR1));
  CHECK(of_type(host.read_all(), FrameType::ended) == "0");
}

TEST_CASE("The end of the job ends a host that is in no round, and what it says then is not shown") {
  const bool in_round = GENERATE(false, true);
  CAPTURE(in_round);
  const TemporaryDirectory directory;
  Host host([&](const Bootstrap&, const HeadConnection& head) {
    if (in_round) head.report_round();
    ddrun::test::write_file(directory.file("up"), "");
    const bool told = receives(SIGTERM, in_round ? 1 : 20);
    ::signal(SIGPIPE, SIG_IGN);
    write_all(STDERR_FILENO, "late", 4);
    return told ? 3 : 4;
  });
  host.start();
  REQUIRE(wait_until([&] { return ::access(directory.file("up").c_str(), F_OK) == 0; }));
  if (in_round) host.read_to(FrameType::in_round);  // the relay knows
  host.send(FrameType::over);
  const auto all = host.read_all();
  CHECK(of_type(all, FrameType::ended) == (in_round ? "4" : "3"));
  CHECK(of_type(all, FrameType::err) == (in_round ? "late" : ""));
}

TEST_CASE("Lines of workers stand between what ddrun says before and after them") {
  const bool one_console = GENERATE(false, true);
  CAPTURE(one_console);
  Host host([](const Bootstrap&, const HeadConnection& head) {
    const auto [out, err] = head.frames();
    WipedString frames;
    for (int i = 0; i < 2000; ++i) append_frame(frames, FrameType::piece, std::string(300, '.'));
    const bool written = write_all(STDERR_FILENO, "early\n", 6) && write_all(out, frames.data(), frames.size()) &&
                         write_all(err, frames.data(), frames.size()) && write_all(STDERR_FILENO, "late\n", 5);
    return written ? 0 : 1;
  });
  Bootstrap part;
  part.one_console = one_console;
  host.start(part);
  std::vector<std::pair<std::string, int>> seen;  // text or "", and how many frames of it
  for (const Got& one : host.read_all()) {
    const bool is_text = one.type == FrameType::out || one.type == FrameType::err;
    if (!is_text && one.type != FrameType::piece) continue;
    const std::string text = is_text ? one.payload : "";
    if (seen.empty() || seen.back().first != text) seen.emplace_back(text, 0);
    ++seen.back().second;
  }
  CHECK(seen == std::vector<std::pair<std::string, int>>{{"early\n", 1}, {"", 4000}, {"late\n", 1}});
}

TEST_CASE("A question is put to the socket of the host's ddrun, and output goes before the reply") {
  const TemporaryDirectory directory;
  REQUIRE(::setenv("XDG_RUNTIME_DIR", directory.path().c_str(), 1) == 0);
  const std::string reply(std::size_t{20} << 20U, 'r');
  const auto exists = [&](const char* name) { return ::access(directory.file(name).c_str(), F_OK) == 0; };
  Host host([&](const Bootstrap&, const HeadConnection&) {
    ::signal(SIGPIPE, SIG_IGN);
    boost::asio::io_context io;
    job_socket::Server server(io.get_executor(), [&](const job_socket::Request& request, const auto& answer) {
      ddrun::test::write_file(directory.file("asked"), "");
      if (request.as_json) return answer(reply);
      write_all(STDOUT_FILENO, "out", 3);
      answer(request.line);
    });
    if (!wait_until([&] { return exists("opens"); })) return 1;
    server.open({directory.file("ddrun")}, ::getpid());
    ddrun::test::write_file(directory.file("up"), "");
    int idle = 0;  // rounds in which nothing could be written
    const auto ends = [&] {
      io.restart();
      idle = io.run_for(std::chrono::milliseconds(5)) == 0 ? idle + 1 : 0;
      if (idle == 40 && exists("asked")) ddrun::test::write_file(directory.file("held back"), "");
      return exists("end");
    };
    return wait_until(ends, std::chrono::minutes(1)) ? 0 : 1;
  });
  const auto reply_to = [](std::uint32_t number, const std::vector<Got>& all) {
    std::string text;
    for (const Got& one : all) {
      const auto [to, part] = decode_numbered(one.payload);
      if (one.type == FrameType::answer && to == number) text += part;
    }
    return text;
  };
  const auto read_reply = [&](std::uint32_t number) {
    return reply_to(number, host.read_until([number](const std::vector<Got>& all) {
      return std::any_of(all.begin(), all.end(), [number](const Got& one) {
        return one.type == FrameType::answer && one.payload == numbered(number, {});
      });
    }));
  };
  host.start();
  host.send(FrameType::ask, numbered(1, R"({"question":"stacks"})"));
  CHECK(read_reply(1) == "{\"error\":\"its ddrun has no socket yet, or none can be made; ask again\"}\n");
  ddrun::test::write_file(directory.file("opens"), "");
  REQUIRE(wait_until([&] { return exists("up"); }));

  host.send(FrameType::ask, numbered(2, R"({"question":"stacks","format":"json"})"));
  REQUIRE(wait_until([&] { return exists("held back"); }));  // else the relay would have read all by then
  const std::string request = R"({"question":"stacks","ranks":"3","threads":"all"})";
  host.send(FrameType::ask, numbered(3, request));
  CHECK(read_reply(3) == request + "\n");
  const auto all = host.read_until([](const auto& got) { return of_type(got, FrameType::out) == "out"; });
  CHECK(reply_to(2, all).size() < std::size_t{2} << 20U);
  const bool is_whole = read_reply(2) == reply + "\n";
  CHECK(is_whole);
  ddrun::test::write_file(directory.file("end"), "");
  CHECK(of_type(host.read_all(), FrameType::ended) == "0");
}

TEST_CASE("A relay ends with its job when the head is gone while it sends") {
  const TemporaryDirectory directory;
  Host host([&](const Bootstrap&, const HeadConnection&) {
    ::signal(SIGPIPE, SIG_IGN);
    ddrun::test::write_file(directory.file("up"), "");
    bool told = false;
    for (int seconds = 0; !told && seconds < 20; ++seconds) {
      write_all(STDOUT_FILENO, "x\n", 2);
      told = receives(SIGTERM, 1);
    }
    ddrun::test::write_file(directory.file("end"), told ? "told" : "not told");
    return 0;
  });
  host.start();
  REQUIRE(wait_until([&] { return ::access(directory.file("up").c_str(), F_OK) == 0; }));
  host.stop_reading();
  CHECK(wait_until([&] { return ddrun::test::read_file(directory.file("end")) == "told"; }));
}
