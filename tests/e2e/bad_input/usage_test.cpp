#include "refused.hpp"

using namespace ddrun::test;

TEST_CASE("An unknown option is refused and the nearest is named") {
  const auto outcome = finish(job({"--max-restart=3"}, {"print", "started"}));
  check_refused(outcome, 2);
  CHECK(has(outcome.err, "unknown option '--max-restart'; did you mean '--max-restarts'?"));
}

TEST_CASE("One worker per GPU is refused where there is no GPU") {
  if (::system("ls /dev/nvidia[0-9]* /dev/kfd >/dev/null 2>&1") == 0) skip("this machine has a GPU");
  const auto outcome = finish(job({"--nproc-per-node=gpu"}, {"print", "started"}));
  check_refused(outcome, 2);
  CHECK(has(outcome.err, "no GPU"));
  CHECK(has(outcome.err, "use a number, or cpu"));
}

TEST_CASE("Mistakes in a settings file are named with their place") {
  const TemporaryDirectory dir;
  const std::string file = dir.file("launch.toml");

  write_file(file, "nproc-per-node = 2\nmax-restart = 3\n");
  const auto unknown = finish(job({"--config=" + file}, {"print", "started"}));
  check_refused(unknown, 2);
  CHECK(has(unknown.err, file + ":2:"));
  CHECK(has(unknown.err, "max-restart"));
  CHECK(has(unknown.err, "max-restarts"));

  write_file(file, "nproc-per-node = \n");
  const auto syntax = finish(job({"--config=" + file}, {"print", "started"}));
  check_refused(syntax, 2);
  CHECK(has(syntax.err, file + ":1:"));

  const auto missing = finish(job({"--config=" + dir.file("none.toml")}, {"print", "started"}));
  check_refused(missing, 2);
  CHECK(has(missing.err, dir.file("none.toml")));
}

TEST_CASE("A wrong variable is refused and named") {
  RunOptions options;
  options.env = {{"DDRUN_NPROC_PER_NODE", "many"}};
  const auto outcome = finish(job({}, {"print", "started"}), options);
  check_refused(outcome, 2);
  CHECK(has(outcome.err, "DDRUN_NPROC_PER_NODE"));
}
