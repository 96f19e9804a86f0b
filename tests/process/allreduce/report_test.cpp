// The files beside the table: JSON and CSV.

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include "report_files.hpp"

using namespace ddrun;
using namespace ddrun::test;

namespace {

const std::string kNames =
    "collective,type,redop,root,placement,size,count,world_size,backend,time_us,algbw_gbps,busbw_gbps,wrong,iterations,"
    "median_us,p99_us,min_us,samples,lacking";

}  // namespace

TEST_CASE("CSV has a line per measurement with what JSON has") {
  const TemporaryDirectory directory;
  const std::string csv = directory.file("result.csv");
  const std::string json = directory.file("result.json");
  write_file(csv, std::string(100000, 'x'));
  Ranks ranks(2, {"-b", "1K", "-e", "4K", "-n", "3", "--csv", csv, "-J", json});
  REQUIRE(ranks.wait()[0].code() == 0);
  const auto lines = lines_of(read_file(csv));
  const auto report = nlohmann::json::parse(read_file(json));
  REQUIRE(lines.size() == 1 + 3 * 2);
  CHECK(lines[0] == kNames);
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const auto fields = split(lines[i], ',');
    REQUIRE(fields.size() == 19);
    const auto& row = report["results"][(i - 1) / 2];
    const std::string placement = i % 2 == 1 ? "out_of_place" : "in_place";
    CHECK(fields[0] == "all_reduce");
    CHECK(fields[1] == "float");
    CHECK(fields[2] == "sum");
    CHECK(fields[3] == "-1");
    CHECK(fields[4] == placement);
    CHECK(fields[5] == std::to_string(row["size"].get<std::uint64_t>()));
    CHECK(fields[7] == "2");
    CHECK(fields[8] == "shm");
    const auto& one = row[placement];
    CHECK(std::stod(fields[9]) == one["time_us"].get<double>());
    CHECK(std::stod(fields[11]) == one["busbw_gbps"].get<double>());
    CHECK(fields[12] == "0");
    CHECK(fields[13] == "3");
    CHECK(std::stod(fields[14]) == one["median_us"].get<double>());
    CHECK(std::stod(fields[15]) == one["p99_us"].get<double>());
    CHECK(std::stod(fields[16]) == one["min_us"].get<double>());
    CHECK(fields[18].empty());
  }
}

TEST_CASE("a report of a run that a lost rank ended has the rows before") {
  const TemporaryDirectory directory;
  const std::string csv = directory.file("result.csv");
  Ranks ranks(2, {"-b", "8", "-e", "1K", "-n", "2", "--kill-rank", "1", "--kill-at", "32", "--csv", csv,
                  "--min-busbw=1000000"});
  CHECK(ranks.wait()[0].code() == 1);
  CHECK(lines_of(read_file(csv)).size() == 1 + 2 * 2);
}

TEST_CASE("a report on standard output is alone there") {
  for (const std::string option : {"-J", "--csv"}) {
    const Outcome outcome = run_alone({"-b", "8", "-e", "64", "-n", "2", option, "-"});
    CAPTURE(option, outcome.err, outcome.out);
    CHECK(outcome.code() == 0);
    CHECK(outcome.err.find("# Out of bounds values : 0 OK") != std::string::npos);
    if (option == "-J") {
      CHECK(nlohmann::json::parse(outcome.out)["results"].size() == 4);
    } else {
      CHECK(lines_of(outcome.out).size() == 1 + 4 * 2);
    }
  }
}

TEST_CASE("a report on /dev/stdout that is a file comes after the table") {
  const TemporaryDirectory directory;
  const std::string both = directory.file("both");
  RunOptions options;
  options.in_child = [&both] { dup2(open(both.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666), STDOUT_FILENO); };
  CHECK(run_alone({"-e", "64", "-n", "2", "--csv", "/dev/stdout"}, options).code() == 0);
  const std::string text = read_file(both);
  CHECK(text.starts_with("# ddrun-allreduce"));
  CHECK(text.find("# Avg bus bandwidth") < text.find(kNames));
  CHECK(text.find(kNames) != std::string::npos);
}

TEST_CASE("reports that cannot be written cost no measurement") {
  for (const std::string option : {"--csv", "--output_file"}) {
    const Outcome outcome = run_alone({option, "/no/such/directory/x"});
    check_ends(outcome, 2, concat(option, ": cannot write /no/such/directory/x: No such file or directory"));
    CHECK(outcome.out.empty());
  }
  check_ends(run_alone({"--csv", "x", "-J", "x"}), 2, "x: two reports cannot be written to one file");
  check_ends(run_alone({"--csv="}), 2, "--csv: ");
}

TEST_CASE("a full disk is said of a file that was begun") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("report.json");
  constexpr int kNoMount = 99;
  RunOptions options;
  options.in_child = [at = directory.path()] {
    if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", at.c_str(), "tmpfs", 0, "size=4096") != 0) {
      _exit(kNoMount);
    }
  };
  const Outcome outcome = run_alone({"-e", "64K", "-n", "2", "-J", path}, options);
  if (outcome.code() == kNoMount) skip("a file system cannot be mounted here");
  check_ends(outcome, 1, concat("--output_file: cannot write ", path, ": No space left on device"));
  CHECK(outcome.out.find("# Out of bounds values : 0 OK") != std::string::npos);
}

TEST_CASE("a full disk is said, and every rank ends with the same status") {
  const std::string option = GENERATE("--csv", "--output_file");
  Ranks ranks(2, {"-e", "64", "-n", "2", option, "/dev/full"});
  const auto outcomes = ranks.wait();
  check_ends(outcomes[0], 1, option + ": cannot write /dev/full: No space left on device");
  CHECK(outcomes[1].code() == 1);
  CHECK(outcomes[1].err.empty());
}
