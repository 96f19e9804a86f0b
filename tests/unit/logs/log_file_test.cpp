#include "ddrun/logs/log_file.hpp"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "ddrun/test/catch.hpp"
#include "scratch_dir.hpp"

using ddrun::logs::LogFile;
using ddrun::test::file_text;
using ddrun::test::ScratchDir;

TEST_CASE("a log file is appended to byte for byte") {
  ScratchDir dir;
  const std::string bytes("a\0b\xff\r\nno end", 12);
  {
    LogFile file(dir / "x.log", 0);
    REQUIRE(file.open());
    file.write(bytes);
  }
  LogFile again(dir / "x.log", 0);
  again.write(bytes);
  CHECK(file_text(again.path()) == bytes + bytes);
  CHECK(again.lost_bytes() == 0);
  CHECK(again.first_error().empty());
}

TEST_CASE("rotation loses no byte and breaks between lines") {
  ScratchDir dir;
  const std::string path = dir / "stdout.log";
  std::string all;
  LogFile file(path, 1000);
  for (int i = 0; i < 400; ++i) all += "line number " + std::to_string(i) + " of this file\n";
  const auto step = static_cast<std::size_t>(GENERATE(1, 7, 64, 333, 5000, 100000));
  CAPTURE(step);
  for (std::size_t at = 0; at < all.size(); at += step) file.write(std::string_view(all).substr(at, step));

  std::string joined;
  int count = 0;
  while (std::filesystem::exists(path + "." + std::to_string(count + 1))) ++count;
  CHECK(count >= 10);
  for (int number = count; number >= 1; --number) {
    const std::string text = file_text(path + "." + std::to_string(number));
    CHECK(text.size() <= 1040);  // the limit and the rest of a line
    CHECK(text.size() > 900);
    CHECK(text.back() == '\n');
    joined += text;
  }
  joined += file_text(path);
  CHECK(joined == all);
}

TEST_CASE("a line longer than a whole file is cut rather than lost") {
  ScratchDir dir;
  const std::string path = dir / "stdout.log";
  const std::string line = std::string(20'000, 'x') + "\n";
  LogFile file(path, 1000);
  file.write(line);
  std::string joined;
  int count = 0;
  while (std::filesystem::exists(path + "." + std::to_string(count + 1))) ++count;
  for (int number = count; number >= 1; --number) joined += file_text(path + "." + std::to_string(number));
  joined += file_text(path);
  CHECK(joined == line);
  CHECK(count == 3);
}

TEST_CASE("a new file makes its directory if the attempt could not") {
  ScratchDir dir;
  LogFile file(dir / "attempt_1/0/stdout.log", 0);
  REQUIRE(file.open());
  file.write("x\n");
  CHECK(file_text(file.path()) == "x\n");
}

TEST_CASE("what does not fit on the device is counted with the reason") {
  LogFile file("/dev/full", 0);
  file.write("some line\n");
  file.write("another\n");
  CHECK(file.lost_bytes() == 18);
  CHECK(file.first_error() == "cannot write /dev/full: No space left on device");
}

TEST_CASE("after a full disk the file goes on with a whole line") {
  ScratchDir dir;
  const std::string path = dir / "stdout.log";
  // A file size limit stands in for the disk; in a process of its own, because the limit holds for everything.
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit full{10, RLIM_INFINITY};
    ::setrlimit(RLIMIT_FSIZE, &full);
    LogFile file(path, 0);
    file.write("first\nsecond line\n");  // ten bytes of it fit
    file.write("lost half ");
    const rlimit free{RLIM_INFINITY, RLIM_INFINITY};
    ::setrlimit(RLIMIT_FSIZE, &free);
    // Tried again after a pause only, however much is written: 30 s are more than enough for it.
    const auto deadline = ddrun::Clock::now() + std::chrono::seconds(30);
    while (file_text(path).find("line\n") == std::string::npos && ddrun::Clock::now() < deadline) {
      file.write("of a line\nwhole line\nlost half ");
      ::usleep(10'000);
    }
    ::_exit(file.lost_bytes() > 8 && !file.first_error().empty() ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(file_text(path) == "first\nseco\nwhole line\nlost half ");
}
