#include <sys/stat.h>

#include "refused.hpp"

using namespace ddrun::test;

namespace {

void make(const std::string& path, const std::string& text, mode_t mode) {
  write_file(path, text);
  REQUIRE(::chmod(path.c_str(), mode) == 0);
}

}  // namespace

TEST_CASE("A program that is not in PATH is an error of its own and the nearest name is suggested") {
  const TemporaryDirectory dir;
  make(dir.file("trainer"), "#!/bin/sh\n", 0755);
  RunOptions options;
  options.env = {{"PATH", dir.path()}};
  const auto outcome = finish(command({"-n", "2", "trainr", "--lr", "1"}), options);
  check_refused(outcome, 127);
  CHECK(has(outcome.err, "trainr: not found in PATH"));
  CHECK(has(outcome.err, "did you mean trainer?"));
}

TEST_CASE("A path that does not exist is an error of its own") {
  const auto outcome = finish(command({"-n", "2", "./no/such/program"}));
  check_refused(outcome, 127);
  CHECK(has(outcome.err, "./no/such/program: no such file"));
}

TEST_CASE("A missing Python script is an error of its own") {
  const TemporaryDirectory dir;
  RunOptions options;
  options.env = {{"PYTHON_EXEC", "/bin/true"}};
  const auto outcome = finish(command({dir.file("train.py")}), options);
  check_refused(outcome, 127);
  CHECK(has(outcome.err, dir.file("train.py")));
}

TEST_CASE("A directory cannot be a program") {
  const TemporaryDirectory dir;
  const auto outcome = finish(command({"-n", "2", dir.path()}));
  check_refused(outcome, 126);
  CHECK(has(outcome.err, dir.path() + ": is a directory"));
}

TEST_CASE("A script without an interpreter line is explained") {
  const TemporaryDirectory dir;
  make(dir.file("train"), "echo training\n", 0755);
  const auto outcome = finish(command({"-n", "2", dir.file("train")}));
  check_refused(outcome, 126);
  CHECK(has(outcome.err, dir.file("train") + ": exec format error"));
  CHECK(has(outcome.err, "#!/bin/sh"));
}

TEST_CASE("A script whose interpreter is missing is explained") {
  const TemporaryDirectory dir;
  make(dir.file("train"), "#!/no/such/interpreter\necho training\n", 0755);
  const auto outcome = finish(command({"-n", "2", dir.file("train")}));
  check_refused(outcome, 126);
  CHECK(has(outcome.err, "/no/such/interpreter"));
}

TEST_CASE("A program that may not be executed is explained") {
  const TemporaryDirectory dir;
  make(dir.file("train"), "#!/bin/sh\necho training\n", 0644);
  const auto outcome = finish(command({"-n", "2", dir.file("train")}));
  check_refused(outcome, 126);
  CHECK(has(outcome.err, dir.file("train") + ": not executable; try: chmod +x " + dir.file("train")));
}

TEST_CASE("A missing working directory is named") {
  const auto outcome = finish(job({"--chdir=/no/such/directory"}, {"print", "started"}));
  check_refused(outcome, 2);
  CHECK(has(outcome.err, "--chdir=/no/such/directory: No such file or directory"));
}

TEST_CASE("A file as working directory is refused") {
  const TemporaryDirectory dir;
  write_file(dir.file("file"), "");
  const auto outcome = finish(job({"--chdir=" + dir.file("file")}, {"print", "started"}));
  check_refused(outcome, 2);
  CHECK(has(outcome.err, "not a directory"));
}
