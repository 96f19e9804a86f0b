#include <filesystem>
#include <map>

#include "../job.hpp"

using namespace ddrun::test;

namespace {

/// The only file of this name below `directory`.
std::string find_file(const std::string& directory, const std::string& end_of_path) {
  std::string found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (!entry.path().string().ends_with(end_of_path)) continue;
    REQUIRE(found.empty());
    found = entry.path();
  }
  INFO("looking for " << end_of_path << " in " << directory);
  REQUIRE_FALSE(found.empty());
  return found;
}

}  // namespace

TEST_CASE("Bursts of eight ranks are never torn and stay in order") {
  constexpr int lines = 20'000;
  const auto outcome = finish(job({"-n", "8"}, {"lines", std::to_string(lines)}));
  CHECK(outcome.code() == 0);
  CHECK(outcome.err.empty());
  std::map<std::string, int> next;
  std::size_t wrong = 0;
  std::size_t at = 0;
  while (at < outcome.out.size()) {
    const std::size_t end = outcome.out.find('\n', at);
    REQUIRE(end != std::string::npos);
    const std::string line = outcome.out.substr(at, end - at);
    at = end + 1;
    const std::string rank = line.substr(1, 1);
    std::string wanted = "line " + std::to_string(next[rank]++) + " of rank " + rank + " ";
    wanted.resize(99, 'x');
    if (line != "[" + rank + "] " + wanted && ++wrong < 4) UNSCOPED_INFO("wrong line: " << line);
  }
  CHECK(wrong == 0);
  CHECK(next.size() == 8);
  for (const auto& [rank, count_of_rank] : next) CHECK(count_of_rank == lines);
}

TEST_CASE("Every byte of a worker is in its log before the end") {
  const TemporaryDirectory dir;
  for (const char* mode : {"--redirects=3", "--tee=3"}) {
    const std::string logs = dir.file(mode);
    const auto outcome = finish(
        job({"-n", "2", mode, "--log-dir=" + logs}, {"lines", "5000", "error", "to stderr", "raw", "no newline"}));
    INFO(mode << "\n" << outcome.err.substr(0, 2000));
    CHECK(outcome.code() == 0);
    for (const char* rank : {"0", "1"}) {
      const std::string text = read_file(find_file(logs, std::string("/attempt_0/") + rank + "/stdout.log"));
      CHECK(text.size() == 5000 * 100 + 10);
      CHECK(text.ends_with("\nno newline"));
      CHECK(read_file(find_file(logs, std::string("/attempt_0/") + rank + "/stderr.log")) == "to stderr\n");
    }
  }
}

TEST_CASE("What a surviving grandchild writes until it is ended is in the log") {
  const TemporaryDirectory dir;
  for (const char* mode : {"--redirects=1", "--tee=1"}) {
    const std::string logs = dir.file(mode);
    // The stray has 20,000 lines to write and hears of the end of the job in the middle of it or later.
    const auto outcome = finish(job({"--shutdown-timeout=10", mode, "--log-dir=" + logs},
                                    {"child", "ignore", "TERM", "touch", dir.file("there"), "lines", "20000", "print",
                                     "last words", "exit", "0", ";", "await", dir.file("there"), "exit", "0"}));
    INFO(mode << "\n" << outcome.err);
    CHECK(outcome.code() == 0);
    const std::string text = read_file(find_file(logs, "/stdout.log"));
    CHECK(text.size() == 20'000 * 100 + 11);
    CHECK(text.ends_with("last words\n"));
    if (std::string(mode) == "--tee=1") CHECK(outcome.out.ends_with("last words\n"));
    std::filesystem::remove(dir.file("there"));
  }
}

TEST_CASE("A line of ten megabytes comes out in one piece") {
  const auto outcome = finish(job({"-n", "2"}, {"long", "10000000"}));
  CHECK(outcome.code() == 0);
  REQUIRE(outcome.out.size() == 2 * (4 + 10'000'000 + 1));
  CHECK(count(outcome.out, "\n") == 2);
  for (const std::size_t at : {std::size_t{0}, std::size_t{10'000'005}}) {
    CHECK(outcome.out[at] == '[');
    CHECK(outcome.out.substr(at + 2, 2) == "] ");
    CHECK(outcome.out.find_first_not_of('z', at + 4) == at + 10'000'004);
  }
}

TEST_CASE("Bytes that are no text pass unchanged") {
  const TemporaryDirectory dir;
  const auto outcome = finish(command({"-n", "2", "--tee=1", "--label=rank", "--log-dir=" + dir.path(), "--", "/bin/sh",
                                       "-c", R"(printf 'a\000b\377\376\303(\033[31mred\033[0m\n')"}));
  DDRUN_SHOW(outcome);
  const std::string line("a\0b\xff\xfe\xc3(\x1b[31mred\x1b[0m\n", 20);
  CHECK(outcome.code() == 0);
  CHECK((outcome.out == "[0] " + line + "[1] " + line || outcome.out == "[1] " + line + "[0] " + line));
  CHECK(read_file(find_file(dir.path(), "/1/stdout.log")) == line);
}

TEST_CASE("Progress bars come out piece by piece and a missing last newline is added on the console") {
  const auto outcome = finish(command({"-n", "2", "/bin/sh", "-c", R"(printf ' 10%%\r 50%%\r100%%')"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  for (const std::string rank : {"0", "1"}) {
    const std::string prefix = "[" + rank + "] ";
    CHECK(has(outcome.out, prefix + " 10%\r"));
    CHECK(has(outcome.out, prefix + " 50%\r"));
    CHECK(has(outcome.out, prefix + "100%\n"));
  }
}

TEST_CASE("stdout goes to stdout and stderr to stderr") {
  const auto outcome = finish(job({"-n", "2"}, {"print", "to out", "error", "to err"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(count(outcome.out, "to out\n") == 2);
  CHECK(count(outcome.err, "to err\n") == 2);
  CHECK(count(outcome.out + outcome.err, "\n") == 4);
}
