#include <sys/stat.h>

#include "../job.hpp"

using namespace ddrun::test;

// What people type who know other launchers.

namespace {

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    lines.push_back(text.substr(at, end - at));
  }
  return lines;
}

}  // namespace

TEST_CASE("ddrun env with words of env(1) runs the program with them") {
  RunOptions options;
  options.env = {{"LEFT", "1"}};
  for (const Words& words : {Words{"env", "FOO=7", "printenv", "FOO"},
                             {"env", "-u", "LEFT", "FOO=7", "sh", "-c", "echo ${LEFT:-7}"},
                             {"env", "-i", "FOO=7", "/bin/sh", "-c", "echo $FOO"},
                             {"env", "echo", "7"}}) {
    CAPTURE(words);
    const auto outcome = finish(command(words), options);
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() == 0);
    CHECK(outcome.out == "7\n");
  }
  const auto failed = finish(command({"env", "FOO=7", "sh", "-c", "exit 5"}));
  DDRUN_SHOW(failed);
  CHECK(failed.code() == 5);
}

TEST_CASE("ddrun env with options of ddrun starts nothing and says so") {
  const TemporaryDirectory dir;
  const auto outcome = finish(command({"env", "-n", "2", "touch", dir.file("started")}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(has(outcome.out, "touch, not started"));
  CHECK(::access(dir.file("started").c_str(), F_OK) != 0);
}

TEST_CASE("A program called agent is not taken for what serves other machines") {
  RunOptions options;
  options.input = "hello\n";
  const auto outcome = finish(command({"agent", "--lr", "1"}), options);
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 2);
  CHECK(outcome.out.empty());
  CHECK(has(outcome.err, "ddrun -- agent"));
}

TEST_CASE("What -x gives a value is set for the workers of this machine") {
  const auto outcome = finish(command({"-x", "FOO=1", "-n", "2", "printenv", "FOO"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(has(outcome.out, "[0] 1\n"));
  CHECK(has(outcome.out, "[1] 1\n"));
  CHECK(outcome.err.empty());
}

TEST_CASE("Option -v shows rank and pid of each worker when it starts") {
  const auto outcome = finish(command({"-v", "-n", "2", "sh", "-c", "echo \"rank $RANK pid $$\""}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  for (const std::string& line : split_lines(outcome.out)) CHECK(has(outcome.err, line.substr(line.find("rank"))));
  const auto more = finish(command({"-v", "-v", "-n", "2", "true"}));
  DDRUN_SHOW(more);
  CHECK(has(more.err, "debug: each runs /"));
  CHECK_FALSE(has(outcome.err, "debug: "));
}

TEST_CASE("A report to - is written to standard output") {
  const TemporaryDirectory dir;
  RunOptions options;
  options.directory = dir.path();
  const auto outcome = finish(command({"--report=-", "--label=none", "echo", "hello"}), options);
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(outcome.out.starts_with("hello\n{\n  \"schema_version\": 1"));
  CHECK(::access(dir.file("-").c_str(), F_OK) != 0);
}

TEST_CASE("A PATH for the workers is the one in which the program is looked for") {
  const TemporaryDirectory dir;
  write_file(dir.file("only-here"), "#!/bin/sh\necho found\n");
  REQUIRE(::chmod(dir.file("only-here").c_str(), 0755) == 0);
  const auto outcome = finish(command({"--env", "PATH=" + dir.path() + ":/bin", "only-here"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(outcome.out == "found\n");
  const auto python = finish(command({"--env", "PYTHON_EXEC=" + dir.file("only-here"), "-m", "anything"}));
  DDRUN_SHOW(python);
  CHECK(python.out == "found\n");
  const auto venv = finish(command({"--env", "VIRTUAL_ENV=/no/such/place", "-m", "anything"}));
  DDRUN_SHOW(venv);
  CHECK(venv.code() == 127);
  CHECK(has(venv.err, "/no/such/place/bin/python"));
}

TEST_CASE("What would be started is shown before the program is there") {
  const auto outcome = finish(command({"--dry-run", "-n", "2", "./not-there-yet", "--lr", "1"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(has(outcome.err, "ddrun: warning: ./not-there-yet: no such file"));
  CHECK(has(outcome.out, "./not-there-yet --lr 1"));
  const auto script = finish(command({"--dry-run", "not-there-yet.py"}));
  DDRUN_SHOW(script);
  CHECK(script.code() == 0);
  CHECK(has(script.out, "not-there-yet.py"));
}

TEST_CASE("An MPI program is warned about once as long as ddrun cannot serve it") {
  const auto outcome = finish(command({"-n", "3", DDRUN_TEST_MPI_PROGRAM}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(count(outcome.err, "is an MPI program (it needs libmpi.so.40)") == 1);
  CHECK(has(outcome.err, "start it with mpirun or srun"));
  const auto alone = finish(command({DDRUN_TEST_MPI_PROGRAM}));
  DDRUN_SHOW(alone);
  CHECK(alone.err.empty());
  RunOptions options;
  options.env = {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}};
  const auto served =
      finish(command({"-n", "3", "--env-detect=none", "--keep-scheduler-env", DDRUN_TEST_MPI_PROGRAM}), options);
  DDRUN_SHOW(served);
  CHECK_FALSE(has(served.err, "MPI"));
  const auto taken = finish(command({"-n", "3", "--env-detect=none", DDRUN_TEST_MPI_PROGRAM}), options);
  DDRUN_SHOW(taken);
  CHECK(has(taken.err, "is an MPI program"));
}
