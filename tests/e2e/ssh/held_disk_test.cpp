// --hosts: a disk at home that hangs. A script plays ssh, so that its hosts know the test's shorter silence.
#include <fcntl.h>
#include <unistd.h>

#include "../job.hpp"

using namespace ddrun::test;
using namespace std::chrono_literals;

namespace {

/// A job on one host whose worker stays until the disk has come back. After 2 s without a word each side gives the
/// other up.
void survives(const TemporaryDirectory& dir, const std::string& held, const Words& more, RunOptions options) {
  needs_preload();
  const std::string reach = dir.file("reach", "#!/bin/sh\nexec /bin/sh -c \"$2\"\n", 0755);
  const std::string back = dir.file("back");
  options.env = {{"LD_PRELOAD", DDRUN_TEST_HELD_WRITES},
                 {"DDRUN_TEST_HELD_PATH", held},
                 {"DDRUN_TEST_HELD_UNTIL", back},
                 {"DDRUN_SSH_SILENCE", "2"}};
  Words words{"--ssh=" + reach, "--hosts=one"};
  words.insert(words.end(), more.begin(), more.end());
  Run run(job(words, {"print", "up", "await", back, "print", "done"}), std::move(options));
  REQUIRE(wait_until([&] { return ::access((held + ".held").c_str(), F_OK) == 0; }));
  const auto given_up = [&] { return has(run.err(), "lost") || run.living().empty(); };
  const bool lost = wait_until(given_up, 7s);
  write_file(back, "");
  const auto outcome = run.wait();
  DDRUN_SHOW(outcome);
  CHECK_FALSE(lost);
  CHECK(outcome.code() == 0);
  CHECK(run.all_gone());
}

}  // namespace

TEST_CASE("Standard output in a file whose disk hangs for longer than a host may be silent") {
  const TemporaryDirectory dir;
  const std::string out = dir.file("out", "");
  RunOptions options;
  options.in_child = [&out] { ::dup2(::open(out.c_str(), O_WRONLY), STDOUT_FILENO); };
  survives(dir, out, {}, std::move(options));
  CHECK(has(read_file(out), "up\n"));
  CHECK(has(read_file(out), "done\n"));
}

TEST_CASE("Events in a file whose disk hangs for longer than a host may be silent") {
  const TemporaryDirectory dir;
  const std::string events = dir.file("events", "");
  survives(dir, events, {"--events=" + events}, {});
  CHECK(has(read_file(events), "\"event\":\"joined\""));
  CHECK(has(read_file(events), "\"event\":\"verdict\""));
}
