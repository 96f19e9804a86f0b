// --plot.

#include <dirent.h>
#include <unistd.h>

#include <cstdlib>

#include "ranks.hpp"

using namespace ddrun;
using namespace ddrun::test;

namespace {

bool gnuplot_is_here() {
  for (const std::string& folder : split(std::getenv("PATH"), ':')) {
    if (access((folder + "/gnuplot").c_str(), X_OK) == 0) return true;
  }
  WARN("skipped: gnuplot is not in PATH (apt-get install gnuplot-nox)");
  return false;
}

std::size_t files_in(const std::string& path) {
  std::size_t count = 0;
  DIR* const directory = opendir(path.c_str());
  REQUIRE(directory != nullptr);
  while (const dirent* const entry = readdir(directory)) count += entry->d_name[0] == '.' ? 0 : 1;
  closedir(directory);
  return count;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a run is plotted as PNG or SVG, and nothing else is left") {
  if (!gnuplot_is_here()) return;
  for (const std::string suffix : {"png", "svg"}) {
    const TemporaryDirectory directory;
    const std::string path = directory.file("picture." + suffix);
    Ranks ranks(2, {"-b", "1K", "-e", "1M", "-f", "32", "-n", "2", "--plot", path});
    for (const Outcome& one : ranks.wait()) {
      CAPTURE(one.err);
      CHECK(one.code() == 0);
    }
    const std::string picture = read_file(path);
    if (suffix == "png") {
      REQUIRE(picture.size() > 24);
      CHECK(picture.starts_with("\x89PNG\r\n\x1a\n"));
    } else {
      for (const char* words :
           {"bus bandwidth (GB/s)", "time per call", "1 kiB", "1 MiB", "all_reduce of float sum, out of place",
            "all_reduce of float sum, in place", "ddrun-allreduce, 2 ranks from ", "backend shm"}) {
        CAPTURE(words);
        CHECK(contains(picture, words));
      }
    }
    CHECK(files_in(directory.path()) == 1);
  }
}

TEST_CASE("a plot that cannot be drawn is refused before the measurement") {
  const TemporaryDirectory empty;
  RunOptions options;
  options.env = {{"PATH", empty.path()}};
  check_ends(
      run_alone({"--plot", empty.file("x.png")}, options), 2,
      "--plot: gnuplot, which draws, is not in PATH: install it (Debian and Ubuntu: apt-get install gnuplot-nox)");
  CHECK(files_in(empty.path()) == 0);
  check_ends(run_alone({"--plot", "x.pdf"}), 2, "--plot: the name must end in .svg or .png: x.pdf");
  if (!gnuplot_is_here()) return;
  check_ends(run_alone({"--plot", "/no/such/directory/x.png"}), 2, "--plot: cannot write /no/such/directory/x.png");
  const std::string here = empty.file("x.png");
  check_ends(run_alone({"--plot", here, "--collective=barrier"}), 2, "--plot: there is nothing to draw");
}

TEST_CASE("gnuplot's error is reported") {
  const TemporaryDirectory directory;
  RunOptions options;
  options.env = {{"PATH", directory.path()}};
  const std::vector<std::string> args{"-e", "64", "-n", "2", "--plot", directory.file("x.png")};
  const auto fails = [&](const std::string& script, const std::string& words) {
    directory.file("gnuplot", "#!/bin/sh\n" + script + "\n", 0755);
    check_ends(run_alone(args, options), 1, words);
  };
  fails("echo 'set terminal pngcairo' >&2; echo '     ^' >&2; echo 'line 2: unknown terminal' >&2; exit 1",
        "--plot: gnuplot failed: line 2: unknown terminal");
  fails("exit 0", "--plot: gnuplot failed\n");
  fails("echo picture; exit 3", "--plot: gnuplot failed\n");
  directory.file("gnuplot", "#!/bin/sh\necho picture\n", 0755);
  CHECK(run_alone(args, options).code() == 0);
  CHECK(read_file(directory.file("x.png")) == "picture\n");
}
