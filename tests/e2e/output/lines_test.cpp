#include <filesystem>

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
