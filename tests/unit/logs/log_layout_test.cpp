#include "log_files.hpp"

#include <fnmatch.h>
#include <sys/stat.h>
#include <fstream>

#include <cstdlib>
#include <filesystem>

#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"

using namespace ddrun;
using namespace ddrun::logs;
using ddrun::test::TemporaryDirectory;
namespace fs = std::filesystem;

namespace {

/// Is $TMPDIR until its destruction.
struct TemporaryDir : TemporaryDirectory {
  TemporaryDir() { setenv("TMPDIR", path().c_str(), 1); }
  ~TemporaryDir() { before.empty() ? unsetenv("TMPDIR") : setenv("TMPDIR", before.c_str(), 1); }
  std::string before = std::getenv("TMPDIR") != nullptr ? std::getenv("TMPDIR") : "";
};

}  // namespace

TEST_CASE("the layout is that of torchrun") {
  TemporaryDirectory dir;
  LogSpec log;
  log.dir = dir.file("deep/logs/");
  LogLayout layout(log, "my/run");
  REQUIRE(layout.prepare());
  REQUIRE(layout.begin_attempt(2, {0, 1}));
  CHECK(layout.root() == dir.file("deep/logs"));
  std::string eight;
  for (int i = 0; i < 8; ++i) eight += "[a-z0-9]";
  const std::string shape = dir.path() + "/deep/logs/my_run_" + eight + "/attempt_2";
  CHECK(::fnmatch(shape.c_str(), layout.attempt_dir().c_str(), 0) == 0);
  CHECK(layout.stream_log(StreamId::out, 1) == layout.attempt_dir() + "/1/stdout.log");
  CHECK(layout.stream_log(StreamId::err, 0) == layout.attempt_dir() + "/0/stderr.log");
  CHECK(layout.filtered_log(StreamId::err) == layout.attempt_dir() + "/filtered_stderr.log");
  CHECK(layout.error_file(1) == layout.attempt_dir() + "/1/error.json");
  CHECK(fs::is_directory(layout.attempt_dir() + "/1"));
}

TEST_CASE("an attempt of the same number keeps the logs of the one before") {
  TemporaryDirectory dir;
  LogSpec log;
  log.dir = dir.path();
  LogLayout layout(log, "job");
  REQUIRE(layout.prepare());
  REQUIRE(layout.begin_attempt(0, {0}));
  const std::string first = layout.attempt_dir();
  REQUIRE(layout.begin_attempt(0, {0}));
  CHECK(layout.attempt_dir() == first + ".2");
  CHECK(fs::exists(first + "/0"));
  CHECK(fs::exists(first + ".2/0"));
}

TEST_CASE("without logs there is one private directory for error files and it is removed when unused") {
  TemporaryDir dir;
  LogLayout layout(LogSpec{}, "job");
  REQUIRE(layout.prepare());
  REQUIRE(layout.begin_attempt(1, {0, 1}));
  CHECK(layout.attempt_dir().empty());
  CHECK(layout.error_file(1) == layout.root() + "/error_1_1.json");
  struct stat info {};
  REQUIRE(::stat(layout.root().c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0700);
  SECTION("unused") {
    layout.remove_if_unused();
    CHECK_FALSE(fs::exists(layout.root()));
  }
  SECTION("used") {
    std::ofstream(layout.error_file(1)) << "{}";
    fs::create_directories(layout.error_file(0) + "/x");
    CHECK_FALSE(layout.remove_if_unused());
    CHECK(fs::exists(layout.error_file(1)));
    const std::string other = layout.root() + "/other";
    std::ofstream(other) << "of a worker";
    layout.remove_error_files();
    CHECK_FALSE(layout.remove_if_unused());
    CHECK(fs::exists(other));
    fs::remove(other);
    CHECK(layout.remove_if_unused());
  }
}

TEST_CASE("the private directory is made again with the directory above it") {
  TemporaryDir dir;
  const std::string inner = dir.file("inner");
  fs::create_directory(inner);
  setenv("TMPDIR", inner.c_str(), 1);
  LogSpec log;
  if (GENERATE(false, true)) log.redirects.all_ranks = Streams::out;
  LogLayout layout(log, "job");
  REQUIRE(layout.prepare());
  REQUIRE(layout.begin_attempt(0, {0}));
  fs::remove_all(inner);
  REQUIRE(layout.begin_attempt(1, {0}));
  CHECK(fs::is_directory(fs::path(layout.error_file(0)).parent_path()));
  CHECK((fs::status(layout.root()).permissions() & fs::perms::mask) == fs::perms::owner_all);
}

TEST_CASE("a private directory that cannot be announced is an error and is not made") {
  TemporaryDir dir;
  const auto too_long = [](const std::string&) -> Result<void> { return fail(Errc::invalid_argument, "too long"); };
  const auto result = LogLayout(LogSpec{}, "job").prepare(too_long);
  REQUIRE_FALSE(result);
  CHECK(result.error().code == Errc::invalid_argument);
  CHECK(result.error().message == "too long; set TMPDIR to a shorter path");
  CHECK(fs::is_empty(dir.path()));
}

TEST_CASE("redirecting without a log directory makes one") {
  TemporaryDir dir;
  LogSpec log;
  log.redirects.all_ranks = Streams::out;
  LogLayout layout(log, "job");
  REQUIRE(layout.prepare());
  REQUIRE(layout.begin_attempt(0, {0}));
  CHECK(layout.attempt_dir().rfind(layout.root() + "/job_", 0) == 0);
  layout.remove_if_unused();
  CHECK(fs::exists(layout.attempt_dir() + "/0"));
}

TEST_CASE("the null device as log directory switches files off") {
  LogSpec log;
  log.dir = "/dev/null";
  log.redirects.all_ranks = Streams::both;
  LogLayout layout(log, "job");
  REQUIRE(layout.prepare());
  REQUIRE(layout.begin_attempt(0, {0}));
  CHECK_FALSE(layout.files_allowed());
  CHECK(layout.error_file(0).empty());
  CHECK(layout.root().empty());
}

TEST_CASE("a log directory that cannot be used is refused before anything starts") {
  TemporaryDirectory dir;
  std::ofstream(dir.file("file")) << "x";
  LogSpec log;
  log.dir = dir.file("file");
  auto result = LogLayout(log, "job").prepare();
  REQUIRE_FALSE(result);
  CHECK(result.error().code == Errc::invalid_argument);
  CHECK(result.error().message == "--log-dir: " + dir.file("file") + " is not a directory");
  log.dir = dir.file("file/below");
  result = LogLayout(log, "job").prepare();
  REQUIRE_FALSE(result);
  CHECK(result.error().message.find("Not a directory") != std::string::npos);
  // procfs takes no directories, not even root's.
  log.dir = "/proc/logs";
  result = LogLayout(log, "job").prepare();
  REQUIRE_FALSE(result);
  CHECK(result.error().message.find("/proc/logs") != std::string::npos);
}
