#include "log_files.hpp"

#include <fnmatch.h>
#include <sys/stat.h>
#include <unistd.h>
#include <fstream>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <thread>

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

struct LayoutOptions : LogSpec, StreamChoice {};

struct Options {
  OutputOptions options;
};

/// Of two workers, with its options.
struct TestLayout : private Options, public LogLayout {
  TestLayout(const LayoutOptions& log, std::string run_id)
      : Options(options_for(log, std::move(run_id))), LogLayout(options) {}

  static Options options_for(const LayoutOptions& log, std::string run_id) {
    OutputOptions options;
    options.log = log;
    options.programs[0].streams = log;
    options.places = {{0, 0, 0}, {0, 1, 1}};
    options.run_id = std::move(run_id);
    return {options};
  }
};

}  // namespace

TEST_CASE("the layout is that of torchrun") {
  TemporaryDirectory dir;
  LayoutOptions log;
  log.dir = dir.file("deep/logs/");
  TestLayout layout(log, "my/run");
  REQUIRE(layout.prepare());
  REQUIRE(layout.begin_attempt(2));
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

TEST_CASE("latest is a relative link to the run that began last") {
  TemporaryDirectory dir;
  LayoutOptions log;
  log.dir = dir.path();
  const fs::path link = dir.file("latest");
  TestLayout first(log, "job");
  REQUIRE(first.prepare());
  REQUIRE(first.link_latest());
  CHECK(fs::read_symlink(link) == fs::path(first.run_dir()).filename());
  TestLayout second(log, "a/job");
  REQUIRE(second.prepare());
  REQUIRE(second.link_latest());
  CHECK(fs::equivalent(link, second.run_dir()));
  // No other name is left, and the link of a run that is gone is replaced as well.
  CHECK(std::distance(fs::directory_iterator(dir.path()), {}) == 3);
  fs::remove_all(second.run_dir());
  REQUIRE(first.link_latest());
  CHECK(fs::equivalent(link, first.run_dir()));
}

TEST_CASE("a file or directory of the user that is called latest stays") {
  TemporaryDirectory dir;
  LayoutOptions log;
  log.dir = dir.path();
  TestLayout layout(log, "job");
  REQUIRE(layout.prepare());
  const std::string latest = dir.file("latest");
  for (const bool directory : {false, true}) {
    if (directory) fs::create_directory(latest);
    else test::write_file(latest, "mine");
    const auto linked = layout.link_latest();
    REQUIRE_FALSE(linked);
    CHECK(linked.error().code == Errc::invalid_argument);
    CHECK(linked.error().message == latest + " is no symbolic link and stays as it is");
    CHECK(fs::is_directory(latest) == directory);
    CHECK(std::distance(fs::directory_iterator(dir.path()), {}) == 2);
    fs::remove(latest);
  }
}

TEST_CASE("a link to an earlier run that cannot be replaced is said") {
  TemporaryDirectory dir;
  LayoutOptions log;
  log.dir = dir.path();
  TestLayout first(log, "job"), second(log, "job");
  REQUIRE((first.prepare() && first.link_latest() && second.prepare()));
  REQUIRE(::chmod(dir.path().c_str(), 0555) == 0);
  const uid_t self = ::geteuid();
  constexpr uid_t nobody = 65534;
  if (self == 0) REQUIRE(::seteuid(nobody) == 0);  // root may write everywhere
  const auto linked = second.link_latest();
  REQUIRE(::seteuid(self) == 0);
  REQUIRE(::chmod(dir.path().c_str(), 0755) == 0);
  REQUIRE_FALSE(linked);
  CHECK(linked.error().code == Errc::invalid_argument);
  CHECK(linked.error().message ==
        "cannot replace " + dir.file("latest") + ", which leads to another run: Permission denied");
  CHECK(fs::equivalent(dir.file("latest"), first.run_dir()));
}

TEST_CASE("latest is there at all times while jobs with one log directory begin") {
  TemporaryDirectory dir;
  LayoutOptions log;
  log.dir = dir.path();
  const std::string link = dir.file("latest");
  TestLayout first(log, "job");
  REQUIRE(first.prepare());
  REQUIRE(first.link_latest());
  std::atomic<bool> over = false;
  std::atomic<int> missing = 0;
  std::thread reader([&] {
    while (!over) missing += fs::is_directory(link) ? 0 : 1;
  });
  std::vector<std::thread> jobs;
  std::atomic<int> failed = 0;
  for (int i = 0; i < 4; ++i) {
    jobs.emplace_back([&] {
      TestLayout layout(log, "job");
      if (!layout.prepare()) ++failed;
      for (int times = 0; times < 200; ++times) failed += layout.link_latest() ? 0 : 1;
    });
  }
  for (std::thread& job : jobs) job.join();
  over = true;
  reader.join();
  CHECK(missing == 0);
  CHECK(failed == 0);
  CHECK(std::distance(fs::directory_iterator(dir.path()), {}) == 6);
}

TEST_CASE("a temporary log directory has no latest, and a link that cannot be made leaves nothing") {
  TemporaryDir temporary;
  LayoutOptions log;
  log.redirects.all_ranks = Streams::both;
  TestLayout layout(log, "job");
  REQUIRE(layout.prepare());
  REQUIRE(layout.link_latest());
  CHECK(std::distance(fs::directory_iterator(layout.root()), {}) == 1);
  TemporaryDirectory dir;
  log.dir = dir.file("logs");
  TestLayout removed(log, "job");
  REQUIRE(removed.prepare());
  fs::remove_all(*log.dir);
  const auto linked = removed.link_latest();
  REQUIRE_FALSE(linked);
  CHECK(linked.error().code == Errc::unavailable);
  log.dir = "/dev/null";
  TestLayout none(log, "job");
  REQUIRE(none.prepare());
  CHECK(none.link_latest());
  CHECK(none.run_dir().empty());
}

TEST_CASE("an attempt of the same number keeps the logs of the one before") {
  TemporaryDirectory dir;
  LayoutOptions log;
  log.dir = dir.path();
  TestLayout layout(log, "job");
  REQUIRE(layout.prepare());
  REQUIRE(layout.begin_attempt(0));
  const std::string first = layout.attempt_dir();
  REQUIRE(layout.begin_attempt(0));
  CHECK(layout.attempt_dir() == first + ".2");
  CHECK(fs::exists(first + "/0"));
  CHECK(fs::exists(first + ".2/0"));
}

TEST_CASE("without logs there is one private directory for error files and it is removed when unused") {
  TemporaryDir dir;
  TestLayout layout(LayoutOptions{}, "job");
  REQUIRE(layout.prepare());
  REQUIRE(layout.begin_attempt(1));
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
  LayoutOptions log;
  if (GENERATE(false, true)) log.redirects.all_ranks = Streams::out;
  TestLayout layout(log, "job");
  REQUIRE(layout.prepare());
  REQUIRE(layout.begin_attempt(0));
  fs::remove_all(inner);
  REQUIRE(layout.begin_attempt(1));
  CHECK(fs::is_directory(fs::path(layout.error_file(0)).parent_path()));
  CHECK((fs::status(layout.root()).permissions() & fs::perms::mask) == fs::perms::owner_all);
}

TEST_CASE("a private directory that cannot be announced is an error and is not made") {
  TemporaryDir dir;
  const auto too_long = [](const std::string&) -> Result<void> { return fail(Errc::invalid_argument, "too long"); };
  const auto result = TestLayout(LayoutOptions{}, "job").prepare(too_long);
  REQUIRE_FALSE(result);
  CHECK(result.error().code == Errc::invalid_argument);
  CHECK(result.error().message == "too long; set TMPDIR to a shorter path");
  CHECK(fs::is_empty(dir.path()));
}

TEST_CASE("redirecting without a log directory makes one") {
  TemporaryDir dir;
  LayoutOptions log;
  log.redirects.all_ranks = Streams::out;
  TestLayout layout(log, "job");
  REQUIRE(layout.prepare());
  REQUIRE(layout.begin_attempt(0));
  CHECK(layout.attempt_dir().rfind(layout.root() + "/job_", 0) == 0);
  layout.remove_if_unused();
  CHECK(fs::exists(layout.attempt_dir() + "/0"));
}

TEST_CASE("the null device as log directory switches files off") {
  LayoutOptions log;
  log.dir = "/dev/null";
  log.redirects.all_ranks = Streams::both;
  TestLayout layout(log, "job");
  REQUIRE(layout.prepare());
  REQUIRE(layout.begin_attempt(0));
  CHECK_FALSE(layout.files_allowed());
  CHECK(layout.error_file(0).empty());
  CHECK(layout.root().empty());
}

TEST_CASE("a log directory that cannot be used is refused before anything starts") {
  TemporaryDirectory dir;
  std::ofstream(dir.file("file")) << "x";
  LayoutOptions log;
  log.dir = dir.file("file");
  auto result = TestLayout(log, "job").prepare();
  REQUIRE_FALSE(result);
  CHECK(result.error().code == Errc::invalid_argument);
  CHECK(result.error().message == "--log-dir: " + dir.file("file") + " is not a directory");
  log.dir = dir.file("file/below");
  result = TestLayout(log, "job").prepare();
  REQUIRE_FALSE(result);
  CHECK(result.error().message.find("Not a directory") != std::string::npos);
  // procfs takes no directories, not even root's.
  log.dir = "/proc/logs";
  result = TestLayout(log, "job").prepare();
  REQUIRE_FALSE(result);
  CHECK(result.error().message.find("/proc/logs") != std::string::npos);
}
