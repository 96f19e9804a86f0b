
#include <filesystem>
#include <regex>

#include "../job.hpp"

using namespace ddrun::test;

TEST_CASE("Workers start in the directory that was asked for, and a program there is called as the user wrote it") {
  const TemporaryDirectory dir;
  static_cast<void>(dir.file("show.sh", "#!/bin/sh\necho \"$0 in $PWD\"\n", 0755));
  const auto outcome = finish(command({"--chdir=" + dir.path(), "./show.sh"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(outcome.out == "./show.sh in " + dir.path() + "\n");
}

TEST_CASE("ddrun in a virtual environment runs the program with its Python, and a link to it elsewhere does not") {
  const TemporaryDirectory dir;
  static_cast<void>(dir.file("venv/pyvenv.cfg", ""));
  static_cast<void>(dir.file("venv/bin/python", "#!/bin/sh\necho \"own Python: $*\"\n", 0755));
  static_cast<void>(dir.file("bin/python3", "#!/bin/sh\necho \"another: $*\"\n", 0755));
  static_cast<void>(dir.file("train.py", ""));
  std::filesystem::create_symlink(DDRUN_TEST_DDRUN, dir.file("venv/bin/ddrun"));
  std::filesystem::create_symlink(dir.file("venv/bin/ddrun"), dir.file("bin/ddrun"));
  RunOptions options;
  options.directory = dir.path();
  options.env = {{"PATH", dir.file("bin") + ":/usr/bin:/bin"}};
  const auto [ddrun, python] = GENERATE(table<std::string, std::string>(
      {{"venv/bin/ddrun", "own Python"}, {"./venv/../venv/bin/ddrun", "own Python"}, {"bin/ddrun", "another"}}));
  const auto [words, arguments] =
      GENERATE(table<Words, std::string>({{{"train.py", "1"}, "-u train.py 1"},
                                          {{"-m", "train"}, "-u -m train"},
                                          {{"--chdir=venv", "../train.py"}, "-u ../train.py"},
                                          {{"--hosts=localhost", "-n", "1", "train.py"}, "-u train.py"}}));
  Words all{"./" + ddrun};
  all.insert(all.end(), words.begin(), words.end());
  const auto outcome = finish(all, options);
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(has(outcome.out, python + ": " + arguments));
  all.insert(all.begin() + 1, "--dry-run");
  const auto plan = finish(all, options);
  CHECK(
      has(plan.out, python == "another" ? "python3 in PATH" : "the virtual environment that ddrun was started from") ==
      !has(all[2], "--hosts"));
}

TEST_CASE("Workers are bound to CPUs and this is told") {
  const auto outcome = finish(job({"-n", "2", "--bind=cores", "--report-bindings"}, {"facts"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(count(outcome.err, "ddrun: rank ") == 2);
  std::smatch first, second;
  REQUIRE(std::regex_search(outcome.out, first, std::regex(R"(\[0\] cpus( \d+)+)")));
  REQUIRE(std::regex_search(outcome.out, second, std::regex(R"(\[1\] cpus( \d+)+)")));
  const auto cpus = [](const std::smatch& match) { return match.str().substr(match.str().find("cpus")); };
  // On one CPU there is nothing to share out.
  if (::system("test $(nproc) -ge 2") == 0) CHECK(cpus(first) != cpus(second));
}
