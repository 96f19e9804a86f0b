// --plot: pictures, drawn by gnuplot.

#include <dirent.h>
#include <unistd.h>

#include <cstdlib>

#include "report_files.hpp"

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

RunOptions in(const TemporaryDirectory& directory) {
  RunOptions options;
  options.directory = directory.path();
  options.env = {{"HOME", directory.path()}, {"TMPDIR", directory.path()}};
  return options;
}

}  // namespace

TEST_CASE("a run is drawn as PNG or SVG, and nothing else is left") {
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
      for (const char* words : {"bus bandwidth (GB/s)", "time per call", "1 KiB", "1 MiB", "out of place", "in place",
                                "all_reduce of float sum, 2 ranks, machine ", "backend shm"}) {
        CAPTURE(words);
        CHECK(contains(picture, words));
      }
    }
    CHECK(files_in(directory.path()) == 1);
  }
}

TEST_CASE("several runs are drawn without a launcher, each with what tells it from the others") {
  if (!gnuplot_is_here()) return;
  const TemporaryDirectory directory;
  auto slower = usual_report();
  slower["backend"] = "tcp";
  const std::string first = directory.file("a.json", usual_report().dump());
  const std::string second = directory.file("b.json", slower.dump());
  const std::string path = directory.file("both.svg");
  for (const std::vector<std::string>& files :
       {std::vector<std::string>{"--from", first + "," + second}, {"--from", first, "--with", second}}) {
    std::vector<std::string> args{"--plot", path};
    args.insert(args.end(), files.begin(), files.end());
    const Outcome outcome = run_alone(args, in(directory));
    CAPTURE(outcome.err);
    CHECK(outcome.code() == 0);
    CHECK(outcome.out.empty());
    const std::string picture = read_file(path);
    for (const char* words : {"2 ranks, machine m1", "backend shm, a.json", "backend tcp, b.json", "64 MiB"}) {
      CAPTURE(words);
      CHECK(contains(picture, words));
    }
    CHECK(files_in(directory.path()) == 3);
    write_file(path, "");
  }
}

TEST_CASE("names of files and machines are words in a picture and nothing else") {
  if (!gnuplot_is_here()) return;
  const TemporaryDirectory directory;
  directory.file(".gnuplot", "set title 'mine'\nsystem 'touch from-settings'\n");
  auto report = usual_report();
  report["ranks"] = {{{"rank", 0}, {"host", "';system 'touch h';\n`touch h`\x01$(touch h)"}, {"pid", 1}}};
  const std::string odd = directory.file("it's `touch x` <&> \"q\"\nEND\n^{2}_@.json", report.dump());
  const std::string other = directory.file("\xff\xfe.json", usual_report().dump());
  const std::string path = directory.file("odd '`touch y`.svg");
  const Outcome outcome = run_alone({"--plot", path, "--from", odd + "," + other}, in(directory));
  CAPTURE(outcome.err);
  CHECK(outcome.code() == 0);
  const std::string picture = read_file(path);
  CHECK(contains(picture, "it's `touch x` &lt;&amp;>"));
  CHECK(contains(picture, "?END?^{2}_@.json"));
  CHECK(contains(picture, "??.json"));
  CHECK(contains(picture, "machine ';system 'touch h';?`touch h`?$(touch h)"));
  CHECK_FALSE(contains(picture, "mine"));
  CHECK(files_in(directory.path()) == 3);
}

TEST_CASE("a picture that cannot be drawn costs no measurement") {
  const TemporaryDirectory empty;
  RunOptions options;
  options.env = {{"PATH", empty.path()}};
  check_ends(
      run_alone({"--plot", empty.file("x.png")}, options), 2,
      "--plot: gnuplot, which draws, is not in PATH: install it (Debian and Ubuntu: apt-get install gnuplot-nox)");
  CHECK(files_in(empty.path()) == 0);
  check_ends(run_alone({"--plot", "x.pdf"}), 2, "--plot: the name must end in .svg or .png: x.pdf");
  check_ends(run_alone({"--with", "x.json"}), 2, "--with: is for --plot");
  check_ends(run_alone({"--from", "x.json"}), 2, "--from: say what for: --plot, --csv, --compare, ");
  check_ends(run_alone({"--from", "x.json,,y.json", "--plot=x.png"}), 2,
             "--from: must be files with commas between them");
  check_ends(run_alone({"--from", "x.json,y.json", "--csv", "x"}), 2, "--from: several files are for --plot alone");
  check_ends(run_alone({"--from", "x.json", "-J", "y.json", "--csv", "x"}), 2, "--output_file: what --from reads is");
  if (!gnuplot_is_here()) return;
  check_ends(run_alone({"--plot", "/no/such/directory/x.png"}), 2, "--plot: cannot write /no/such/directory/x.png");
  const std::string here = empty.file("x.png");
  check_ends(run_alone({"--plot", here, "-d", "all"}), 2, "--plot: 10 curves cannot be told apart, at most 8 can");
  check_ends(run_alone({"--plot", here, "--collective=barrier"}), 2, "--plot: there is nothing to draw");
  check_ends(run_alone({"--plot", here, "--with", here + ".json"}), 2, "--with: cannot read ");
}

TEST_CASE("what gnuplot complains about is said") {
  const TemporaryDirectory directory;
  const std::string report = directory.file("a.json", usual_report().dump());
  RunOptions options;
  options.env = {{"PATH", directory.path()}};
  const auto fails = [&](const std::string& script, const std::string& words) {
    directory.file("gnuplot", "#!/bin/sh\n" + script + "\n", 0755);
    check_ends(run_alone({"--from", report, "--plot", directory.file("x.png")}, options), 1, words);
  };
  fails("echo 'set terminal pngcairo' >&2; echo '     ^' >&2; echo 'line 2: unknown terminal' >&2; exit 1",
        "--plot: gnuplot failed: line 2: unknown terminal");
  fails("exit 0", "--plot: gnuplot failed\n");
  fails("echo picture; exit 3", "--plot: gnuplot failed\n");
  directory.file("gnuplot", "#!/bin/sh\necho picture\n", 0755);
  CHECK(run_alone({"--from", report, "--plot", directory.file("x.png")}, options).code() == 0);
  CHECK(read_file(directory.file("x.png")) == "picture\n");
}

TEST_CASE("CSV can be made of a report, and a rank other than 0 leaves it to rank 0") {
  const TemporaryDirectory directory;
  const std::string report = directory.file("a.json", usual_report().dump());
  const Outcome outcome = run_alone({"--from", report, "--csv", "-"});
  CHECK(outcome.code() == 0);
  CHECK(lines_of(outcome.out).size() == 1 + 4 * 2);
  RunOptions options;
  options.env = {{"RANK", "1"}, {"WORLD_SIZE", "2"}};
  const Outcome second = run_alone({"--from", report, "--csv", directory.file("x.csv")}, options);
  CHECK(second.code() == 0);
  CHECK(files_in(directory.path()) == 1);
}
