#include "../job.hpp"

using namespace ddrun::test;

// What people type who know other launchers.

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

TEST_CASE("What -x gives a value is set for the workers of this machine") {
  const auto outcome = finish(command({"-x", "FOO=1", "-n", "2", "printenv", "FOO"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(has(outcome.out, "[0] 1\n"));
  CHECK(has(outcome.out, "[1] 1\n"));
  CHECK(outcome.err.empty());
}
