#include <signal.h>
#include <unistd.h>

#include <regex>

#include "../job.hpp"

using namespace ddrun::test;

TEST_CASE("Variables are set for workers") {
  RunOptions options;
  options.env = {{"COLOUR", "red"}, {"SHAPE", "round"}};
  const auto outcome =
      finish(job({"--env=COLOUR=blue", "--env", "TASTE=sweet=sour"}, {"env", "COLOUR", "env", "SHAPE", "env", "TASTE"}),
             options);
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(outcome.out == "COLOUR=blue\nSHAPE=round\nTASTE=sweet=sour\n");
}

TEST_CASE("A variable that says who a worker is cannot be set") {
  const auto outcome = finish(job({"--env=RANK=7"}, {"env", "RANK"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 2);
  CHECK(outcome.out.empty());
  CHECK(has(outcome.err, "RANK"));
}

TEST_CASE("Workers start in the directory that was asked for and programs are found from there") {
  const TemporaryDirectory dir;
  write_file(dir.file("here"), "#!/bin/sh\npwd\n");
  REQUIRE(::system(("chmod +x " + dir.file("here")).c_str()) == 0);
  const auto outcome = finish(command({"--chdir=" + dir.path(), "./here"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(outcome.out == dir.path() + "\n");
}

TEST_CASE("Every rank has its seed") {
  const auto outcome = finish(job({"-n", "3", "--seed=42"}, {"env", "DDRUN_SEED"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(has(outcome.out, "[0] DDRUN_SEED=13679457532755275413\n"));
  CHECK(has(outcome.out, "[1] DDRUN_SEED=2949826092126892291\n"));
  CHECK(has(outcome.out, "[2] DDRUN_SEED=5139283748462763858\n"));
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

TEST_CASE("Workers start clean with three descriptors and a session of their own") {
  RunOptions options;
  options.in_child = [] {
    for (int fd = 20; fd < 30; ++fd) ::dup2(0, fd);
    sigset_t some;
    ::sigemptyset(&some);
    ::sigaddset(&some, SIGUSR1);
    ::sigprocmask(SIG_BLOCK, &some, nullptr);
  };
  for (const char* workers : {"1", "2"}) {
    const auto outcome = finish(job({"-n", workers, "--label=none"}, {"rank", "0", "facts", ";"}), options);
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() == 0);
    CHECK(has(outcome.out, "\nfds 0 1 2\n"));
    CHECK(has(outcome.out, "\nblocked\n"));
    std::smatch match;
    REQUIRE(
        std::regex_search(outcome.out, match, std::regex(R"(pid (\d+)\nparent \d+\ngroup (\d+)\nsession (\d+)\n)")));
    CHECK(match[1] == match[2]);
    CHECK(match[1] == match[3]);
  }
}

TEST_CASE("Lines are labelled as asked for") {
  const auto check = [](const Words& options, const std::string& pattern) {
    Words all{"-n", "2"};
    all.insert(all.end(), options.begin(), options.end());
    const auto outcome = finish(job(all, {"rank", "1", "print", "text", ";"}));
    DDRUN_SHOW(outcome);
    INFO(pattern);
    CHECK(outcome.code() == 0);
    CHECK(std::regex_match(outcome.out, std::regex(pattern)));
  };
  check({}, R"(\[1\] text\n)");
  check({"--label=local"}, R"(\[local 1\] text\n)");
  check({"--label=host"}, R"(\[[^: ]+:1\] text\n)");
  check({"--label=none"}, R"(text\n)");
  check({"--timestamps"}, R"(\d\d:\d\d:\d\d\.\d\d\d \[1\] text\n)");
  check({"--log-line-prefix-template=${role_name}/${rank}/${local_rank}: ", "--role=actor"}, R"(actor/1/1: text\n)");
}

TEST_CASE("Only the chosen ranks are shown") {
  const auto outcome = finish(job({"-n", "4", "--local-ranks-filter=1,3"}, {"print", "text"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(count(outcome.out, "\n") == 2);
  CHECK(has(outcome.out, "[1] text\n"));
  CHECK(has(outcome.out, "[3] text\n"));
}

TEST_CASE("Ranks in arguments are replaced and nothing else is touched") {
  const auto outcome = finish(
      job({"-n", "2", "--label=none"}, {"rank", "1", "args", "${rank}.${local_rank}", "$$", "${HOME}", "--help", ""}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(outcome.out == "1.1\n$$\n${HOME}\n--help\n\n");
}
