#include "ddrun/logs/console.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <csignal>

#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"
#include "output_harness.hpp"

using namespace ddrun;
using namespace ddrun::logs;
using ddrun::test::read_now;

namespace {

constexpr std::size_t high = std::size_t{1} << 20U;

Piece line(std::string_view text) { return Piece{text, false, PieceEnd::terminated}; }

/// Reads `size` bytes or more while the loop runs; fewer after ten seconds.
std::string read_all(boost::asio::io_context& io, int fd, std::size_t size) {
  std::string text;
  const Deadline deadline = Clock::now() + std::chrono::seconds(10);
  while (text.size() < size && Clock::now() < deadline) {
    io.restart();
    io.run_for(std::chrono::milliseconds(1));
    text += read_now(fd);
  }
  return text;
}

/// Queues 2 MiB, most of which cannot be written at once, and checks that all comes out and flags of `fd` stay.
void check_slow_console(int fd, int reader) {
  boost::asio::io_context io;
  const int flags = ::fcntl(fd, F_GETFL);
  auto console = std::make_shared<Console>(io.get_executor(), fd, high);
  int room = 0;
  console->on_drained([&] { ++room; });
  std::string all;
  for (int i = 0; all.size() < 2 * high; ++i) {
    const std::string text = "line " + std::to_string(i) + " of a very long story\n";
    console->add("[0] ", line(text));
    all += "[0] " + text;
  }
  const auto before = Clock::now();
  console->flush();
  CHECK(Clock::now() - before < std::chrono::seconds(1));
  CHECK(console->queued() > high / 2);
  // Without a reader the loop must be idle.
  io.restart();
  CHECK(io.run_for(std::chrono::milliseconds(20)) == 0);
  CHECK(read_all(io, reader, all.size()) == all);
  CHECK(console->queued() == 0);
  CHECK(room > 0);
  CHECK(::fcntl(fd, F_GETFL) == flags);
  CHECK(console->lost_bytes() == 0);
}

}  // namespace

TEST_CASE("a slow pipe keeps its queue and its flags") {
  const Pipe pipe = make_pipe().value();
  check_slow_console(pipe.write.get(), pipe.read.get());
}

TEST_CASE("a slow socket keeps its queue and its flags") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const UniqueFd writer(ends[0]);
  const UniqueFd reader(ends[1]);
  check_slow_console(writer.get(), reader.get());
}

TEST_CASE("a console whose reader closes drops later output and causes no error") {
  std::signal(SIGPIPE, SIG_IGN);
  boost::asio::io_context io;
  Pipe pipe = make_pipe().value();
  auto console = std::make_shared<Console>(io.get_executor(), pipe.write.get(), high);
  console->add("", line(std::string(2'000'000, 'x') + "\n"));
  console->flush();
  CHECK(console->queued() > 0);
  pipe.read.reset();
  const Deadline deadline = Clock::now() + std::chrono::seconds(10);
  while (!console->gone() && Clock::now() < deadline) {
    io.restart();
    io.run_for(std::chrono::milliseconds(1));
  }
  CHECK(console->gone());
  CHECK(console->queued() == 0);
  CHECK(console->lost_bytes() > 900'000);
  CHECK(console->first_error() == "cannot write to the console: Broken pipe");
  const auto lost = console->lost_bytes();
  console->add("ddrun: hello\n");
  CHECK(console->lost_bytes() == lost + 13);
}

TEST_CASE("a console on a closed descriptor is gone from the start") {
  boost::asio::io_context io;
  const auto console = std::make_shared<Console>(io.get_executor(), 9999, high);
  CHECK(console->gone());
}

TEST_CASE("a full disk under a redirected console loses only what does not fit") {
  boost::asio::io_context io;
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  auto console = std::make_shared<Console>(io.get_executor(), full.get(), high);
  console->add("", line("hello\n"));
  console->flush();
  CHECK(console->lost_bytes() == 6);
  CHECK_FALSE(console->gone());
}

TEST_CASE("a file as console is written at its present end") {
  test::TemporaryDirectory dir;
  const UniqueFd file(::open(dir.file("out").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  REQUIRE(write_all(file.get(), "before\n", 7));
  boost::asio::io_context io;
  auto console = std::make_shared<Console>(io.get_executor(), file.get(), high);
  console->add("[1] ", Piece{"no end", false, PieceEnd::cut});
  console->flush();
  REQUIRE(write_all(file.get(), "behind\n", 7));
  CHECK(test::read_file(dir.file("out")) == "before\n[1] no end\nbehind\n");
}

// Lines of other hosts have their prefix already.
TEST_CASE("a line without a prefix is written as it is") {
  boost::asio::io_context io;
  const Pipe pipe = make_pipe().value();
  const auto console = std::make_shared<Console>(io.get_executor(), pipe.write.get(), high);
  console->add({}, line("whole\n"));
  console->add({}, Piece{{}, false, PieceEnd::cut});
  console->flush();
  CHECK(read_all(io, pipe.read.get(), 7) == "whole\n\n");
}

TEST_CASE("two descriptors of one pipe are the same file and two pipes are not") {
  const Pipe pipe = make_pipe().value();
  const Pipe other = make_pipe().value();
  const UniqueFd copy = duplicate(pipe.write.get()).value();
  CHECK(Console::same_file(pipe.write.get(), copy.get()));
  CHECK_FALSE(Console::same_file(pipe.write.get(), other.write.get()));
  CHECK_FALSE(Console::same_file(pipe.write.get(), 9999));
}
