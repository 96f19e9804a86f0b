#include "log_files.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>

#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"
#include "ddrun/test/seccomp.hpp"

using ddrun::logs::LogFile;
using ddrun::test::read_file;
using ddrun::test::skip;
using ddrun::test::TemporaryDirectory;

namespace {

/// From now on renameat2() fails with `err` in the calling thread. False without seccomp filters.
bool refuse_renameat2(int err) {
  return ddrun::test::deny(SYS_renameat2, err) && ::syscall(SYS_renameat2, AT_FDCWD, "", AT_FDCWD, "", 0) == -1 &&
         errno == err;
}

}  // namespace

TEST_CASE("a log file is appended to byte for byte") {
  TemporaryDirectory dir;
  const std::string bytes("a\0b\xff\r\nno end", 12);
  {
    LogFile file(dir.file("x.log"), 0);
    REQUIRE(file.open());
    file.write(bytes);
  }
  LogFile again(dir.file("x.log"), 0);
  again.write(bytes);
  CHECK(read_file(again.path()) == bytes + bytes);
  CHECK(again.lost_bytes() == 0);
  CHECK(again.first_error().empty());
}

TEST_CASE("rotation loses no byte and breaks between lines") {
  TemporaryDirectory dir;
  const std::string path = dir.file("stdout.log");
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
  for (int number = 1; number <= count; ++number) {
    const std::string text = read_file(path + "." + std::to_string(number));
    CHECK(text.size() <= 1040);  // the limit and the rest of a line
    CHECK(text.size() > 900);
    CHECK(text.back() == '\n');
    joined += text;
  }
  joined += read_file(path);
  CHECK(joined == all);
}

TEST_CASE("a line longer than a whole file is cut rather than lost") {
  TemporaryDirectory dir;
  const std::string path = dir.file("stdout.log");
  const std::string line = std::string(20'000, 'x') + "\n";
  LogFile file(path, 1000);
  file.write(line);
  std::string joined;
  int count = 0;
  while (std::filesystem::exists(path + "." + std::to_string(count + 1))) ++count;
  for (int number = 1; number <= count; ++number) joined += read_file(path + "." + std::to_string(number));
  joined += read_file(path);
  CHECK(joined == line);
  CHECK(count == 3);
}

TEST_CASE("rotation renames one file and overwrites none") {
  TemporaryDirectory dir;
  const std::string path = dir.file("stdout.log");
  // Leftovers of an earlier run: a file and a directory.
  ddrun::test::write_file(path + ".2", "old\n");
  std::filesystem::create_directory(path + ".3");
  LogFile file(path, 1000);
  const std::string line = std::string(599, 'x') + "\n";
  for (int i = 0; i < 4; ++i) file.write(std::to_string(i) + line);
  CHECK(read_file(path + ".1") == "0" + line);
  CHECK(read_file(path + ".2") == "old\n");
  CHECK(std::filesystem::is_directory(path + ".3"));
  CHECK(read_file(path + ".4") == "1" + line);
  CHECK(read_file(path + ".5") == "2" + line);
  CHECK(read_file(path) == "3" + line);
  CHECK(file.rotation_error().empty());
  CHECK(file.lost_bytes() == 0);
}

TEST_CASE("rotation overwrites nothing where a file system or a sandbox lacks RENAME_NOREPLACE") {
  const int answer = GENERATE(EINVAL, ENOSYS, EPERM);
  CAPTURE(answer);
  const TemporaryDirectory dir;
  const std::string path = dir.file("stdout.log");
  dir.file("stdout.log.1", "another's\n");
  // As NFS, an old kernel and Docker's old profile answer, in this thread alone.
  bool refused = false;
  std::thread([&] {
    refused = refuse_renameat2(answer);
    if (!refused) return;
    LogFile file(path, 10);
    file.write("first one\nsecond one\nthird\n");
    refused = file.rotation_error().empty() && file.lost_bytes() == 0;
  }).join();
  if (!refused && !std::filesystem::exists(path)) skip("no seccomp filters here");
  CHECK(refused);
  CHECK(read_file(path + ".1") == "another's\n");
  CHECK(read_file(path + ".2") == "first one\n");
  CHECK(read_file(path + ".3") == "second one\n");
  CHECK(read_file(path) == "third\n");
}

TEST_CASE("a file that cannot be renamed grows on and has an error") {
  TemporaryDirectory dir;
  // With a number behind it the name is too long.
  const std::string path = dir.file(std::string(254, 'n'));
  const std::string line = std::string(599, 'x') + "\n";
  LogFile file(path, 1000);
  for (int i = 0; i < 3; ++i) file.write(line);
  CHECK(file.rotation_error() == "cannot set " + path + " aside: File name too long");
  CHECK(file.lost_bytes() == 0);
  CHECK(read_file(path) == line + line + line);
}

TEST_CASE("a removed log file is made again at the next rotation") {
  TemporaryDirectory dir;
  const std::string path = dir.file("stdout.log");
  const std::string line = std::string(599, 'x') + "\n";
  LogFile file(path, 1000);
  file.write(line);
  std::filesystem::remove(path);
  file.write(line);
  CHECK(read_file(path) == line);
  CHECK(file.rotation_error().empty());
}

TEST_CASE("a new file makes its missing directory") {
  TemporaryDirectory dir;
  LogFile file(dir.file("attempt_1/0/stdout.log"), 0);
  REQUIRE(file.open());
  file.write("x\n");
  CHECK(read_file(file.path()) == "x\n");
}

TEST_CASE("bytes that do not fit on the device are counted with the reason") {
  LogFile file("/dev/full", 0);
  file.write("some line\n");
  file.write("another\n");
  CHECK(file.lost_bytes() == 18);
  CHECK(file.first_error() == "cannot write /dev/full: No space left on device");
}

TEST_CASE("after a full disk the file goes on with a whole line") {
  TemporaryDirectory dir;
  const std::string path = dir.file("stdout.log");
  // A file size limit instead of a disk; in a child, because the limit holds for the whole process.
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
    // Retried only after a delay, however much is written: 30 s are more than enough.
    const auto deadline = ddrun::Clock::now() + std::chrono::seconds(30);
    while (read_file(path).find("line\n") == std::string::npos && ddrun::Clock::now() < deadline) {
      file.write("of a line\nwhole line\nlost half ");
      ::usleep(10'000);
    }
    ::_exit(file.lost_bytes() > 8 && !file.first_error().empty() ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(read_file(path) == "first\nseco\nwhole line\nlost half ");
}
