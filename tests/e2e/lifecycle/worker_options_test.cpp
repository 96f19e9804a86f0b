
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

TEST_CASE("GPUs that are not used, and a small /dev/shm, are said once and not with -q") {
  const TemporaryDirectory dir;
  const std::string devices =
      "mount -t tmpfs none " + dir.path() + " && cd " + dir.path() +
      " && for one in null urandom; do touch $one && mount --bind /dev/$one $one || exit 99; done && ln -s "
      "/proc/self/fd fd"
      " && touch nvidiactl nvidia0 nvidia1 && mkdir shm && mount -t tmpfs -o size=64m none shm && mount --rbind . /dev"
      " || exit 99; unset CUDA_VISIBLE_DEVICES; cd /; exec \"$@\"";
  const auto said = [&](const Words& words) {
    Words argv{"/usr/bin/unshare", "-rm", "/bin/sh", "-c", devices, "sh"};
    for (const auto& word : command(words)) argv.push_back(word);
    const auto outcome = finish(argv);
    if (outcome.code() != 0) skip("no devices of its own here: " + outcome.err);
    return outcome.err;
  };
  CHECK(said({"true"}) == "ddrun: 1 worker is started, 2 GPUs are visible: --nproc-per-node=gpu uses all\n");
  CHECK(said({"-n", "1", "true"}).empty());
  CHECK(said({"-q", "-n", "2", "true"}).empty());
  CHECK(said({"-n", "2", "true"}) ==
        "ddrun: /dev/shm has 64 MiB; NCCL and DataLoader workers need more: docker run --shm-size=8g, or --ipc=host\n");
}
