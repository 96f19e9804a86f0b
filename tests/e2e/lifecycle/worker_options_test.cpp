
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
