#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "ranks.hpp"

using namespace ddrun;
using namespace ddrun::test;
using namespace std::chrono_literals;

namespace {

const std::vector<std::string> kShort{DDRUN_TEST_ALLREDUCE, "-e", "64", "-n", "2"};

void check_stdout_is_missed(const std::function<void()>& in_child, const std::string& why) {
  RunOptions options;
  options.in_child = in_child;
  Run run(kShort, options);
  const Outcome outcome = run.wait();
  CAPTURE(outcome.out);
  CHECK(outcome.code() == 1);
  CHECK(outcome.err == concat("ddrun-allreduce: error: cannot write the table: ", why, "\n"));
}

/// Limits files, and so shared memory, to a mebibyte, like a system limit.
void forbid_large_files() {
  signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  limit.rlim_cur = limit.rlim_max = 1 << 20;
  setrlimit(RLIMIT_FSIZE, &limit);
}

}  // namespace

TEST_CASE("a table that cannot be written is an error") {
  check_stdout_is_missed([] { dup2(open("/dev/full", O_WRONLY), STDOUT_FILENO); }, "No space left on device");
  check_stdout_is_missed([] { close(STDOUT_FILENO); }, "Bad file descriptor");
  check_stdout_is_missed(
      [] {
        int ends[2];
        if (pipe(ends) != 0) _exit(99);
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
      },
      "Broken pipe");
}

TEST_CASE("too little shared memory is an error with shm, and makes auto choose tcp") {
  for (const char* backend : {"--backend=shm", "--backend=auto"}) {
    RunOptions options;
    options.env = {{"RANK", "0"}, {"WORLD_SIZE", "1"}};
    options.in_child = forbid_large_files;
    Run run({DDRUN_TEST_ALLREDUCE, "-b", "8M", "-e", "8M", "-n", "2", backend}, options);
    const Outcome outcome = run.wait();
    CAPTURE(backend, outcome.out, outcome.err);
    if (std::string(backend) == "--backend=auto") {
      CHECK(outcome.code() == 0);
      CHECK(lines_of(outcome.out)[0].find("backend: tcp  (") != std::string::npos);
      CHECK(lines_of(outcome.out)[0].find("File too large") != std::string::npos);
    } else {
      CHECK(outcome.code() == 1);
      CHECK(lines_of(outcome.err).size() == 1);
      CHECK(outcome.err.find("File too large") != std::string::npos);
    }
  }
}

TEST_CASE("a root that is not a rank is refused") {
  Ranks ranks(2, {"--collective=broadcast", "--root=2", "-e", "64"});
  for (const Outcome& one : ranks.wait()) {
    CAPTURE(one.err);
    CHECK(one.code() == 2);
    CHECK(one.out.empty());
    CHECK(one.err.find("--root: there is no rank 2") != std::string::npos);
  }
}

TEST_CASE("an interrupt ends all ranks and leaves nothing behind") {
  Ranks ranks(3, {"-b", "1M", "-e", "1M", "-n", "1000000000"});
  REQUIRE(ranks[0].wait_for_out("redop"));
  for (int rank = 0; rank < 3; ++rank) ranks[rank].signal(SIGINT);
  for (int rank = 0; rank < 3; ++rank) {
    const int code = ranks[rank].wait(20s).code();
    // A rank that notices a peer's exit before its own signal reports it.
    CHECK((code == -SIGINT || code == 1));
  }
}

TEST_CASE("the list of back ends shows why some are unavailable") {
  Run run({DDRUN_TEST_ALLREDUCE, "--list"});
  const Outcome outcome = run.wait();
  CAPTURE(outcome.out);
  CHECK(outcome.code() == 0);
  const auto lines = lines_of(outcome.out);
  REQUIRE(lines.size() == 5);
  const std::vector<std::string> names{"auto  ", "nccl  ", "shm   ", "tcp   ", "gloo  "};
  for (std::size_t i = 0; i < lines.size(); ++i) {
    CHECK(lines[i].find(names[i]) == 0);
    const std::string word = lines[i].substr(6, 5);
    CHECK((word == "yes  " || word == "no   "));
    CHECK(lines[i].size() > 11);
  }
  CHECK(lines[2].substr(6, 3) == "yes");
  CHECK(lines[3].substr(6, 3) == "yes");
}

TEST_CASE("an unavailable back end exits with the status that skips a test") {
  Run list({DDRUN_TEST_ALLREDUCE, "--list"});
  const auto lines = lines_of(list.wait().out);
  int missing = 0;
  for (const std::string& line : lines) {
    if (line.size() < 12 || line.substr(6, 2) != "no") continue;
    ++missing;
    const std::string name = line.substr(0, line.find(' '));
    Run run({DDRUN_TEST_ALLREDUCE, "--backend=" + name});
    const Outcome outcome = run.wait();
    CHECK(outcome.code() == 77);
    CHECK(outcome.err == concat("ddrun-allreduce: error: ", line.substr(11), "\n"));
  }
  if (missing == 0) WARN("SKIPPED: this machine has every back end");
}
