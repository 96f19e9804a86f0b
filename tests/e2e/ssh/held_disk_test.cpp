// --hosts: a disk at home that hangs. A script plays ssh, so that its hosts know the test's shorter silence.
#include <fcntl.h>
#include <unistd.h>

#include "../job.hpp"

using namespace ddrun::test;
using namespace std::chrono_literals;

namespace {

/// What ddrun needs, so that what it does to `held` hangs until there is a file `back`. After 2 s without a word each
/// side of a connection gives the other up.
Words hold(const TemporaryDirectory& dir, const std::string& what, const std::string& held, const std::string& back,
           RunOptions& options) {
  needs_preload();
  options.env = {{"LD_PRELOAD", DDRUN_TEST_HELD_WRITES},
                 {what, held},
                 {"DDRUN_TEST_HELD_UNTIL", back},
                 {"DDRUN_SSH_SILENCE", "2"}};
  return {"--ssh=" + dir.file("reach", "#!/bin/sh\nexec /bin/sh -c \"$2\"\n", 0755), "--hosts=one"};
}

bool is_held(const std::string& held) {
  return wait_until([&] { return ::access((held + ".held").c_str(), F_OK) == 0; });
}

/// A job on one host whose worker stays until the disk has come back.
void survives(const TemporaryDirectory& dir, const std::string& held, const Words& more, RunOptions options,
              const std::string& what = "DDRUN_TEST_HELD_PATH", const Words& verbs = {}) {
  const std::string back = dir.file("back");
  Words words = hold(dir, what, held, back, options);
  words.insert(words.end(), more.begin(), more.end());
  Words worker{"print", "up", "await", back};
  worker.insert(worker.end(), verbs.begin(), verbs.end());
  worker.insert(worker.end(), {"print", "done"});
  Run run(job(words, worker), std::move(options));
  REQUIRE(is_held(held));
  const auto given_up = [&] { return has(run.err(), "lost") || run.living().empty(); };
  const bool lost = wait_until(given_up, 7s);
  write_file(back, "");
  const auto outcome = run.wait();
  DDRUN_SHOW(outcome);
  CHECK_FALSE(lost);
  CHECK(outcome.code() == 0);
  CHECK(run.all_gone());
}

RunOptions with_input(const std::string& file) {
  RunOptions options;
  options.in_child = [file] { ::dup2(::open(file.c_str(), O_RDONLY), STDIN_FILENO); };
  return options;
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

TEST_CASE("Standard input from a file whose disk hangs for longer than a host may be silent") {
  const TemporaryDirectory dir;
  // More than is on its way at once.
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += "line " + std::to_string(i) + "\n";
  const std::string in = dir.file("in", text);
  const std::string out = dir.file("out", "");
  RunOptions options = with_input(in);
  options.in_child = [both = options.in_child, &out] {
    both();
    ::dup2(::open(out.c_str(), O_WRONLY), STDOUT_FILENO);
  };
  survives(dir, in, {"--label=none"}, std::move(options), "DDRUN_TEST_HELD_READS", {"stdin"});
  const bool all_came = read_file(out) == "up\n" + text + "done\n";
  CHECK(all_came);
}

TEST_CASE("A job ends while the disk of its standard input hangs") {
  const TemporaryDirectory dir;
  const std::string in = dir.file("in", "never read\n");
  const std::string go = dir.file("go");
  RunOptions options = with_input(in);
  const Words words = hold(dir, "DDRUN_TEST_HELD_READS", in, dir.file("back"), options);
  Run run(job(words, {"await", go, "print", "done"}), std::move(options));
  REQUIRE(is_held(in));
  write_file(go, "");
  const auto outcome = run.wait();
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(has(outcome.out, "done\n"));
  CHECK(run.all_gone());
}
