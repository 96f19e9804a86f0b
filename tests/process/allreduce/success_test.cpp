#include <cmath>
#include <nlohmann/json.hpp>

#include "ranks.hpp"

using namespace ddrun;
using namespace ddrun::test;

namespace {

void check_success(int size, const std::vector<std::string>& args, const std::string& backend, std::size_t rows) {
  Ranks ranks(size, args);
  const auto outcomes = ranks.wait();
  for (int rank = 0; rank < size; ++rank) {
    const Outcome& one = outcomes[static_cast<std::size_t>(rank)];
    CAPTURE(size, rank, one.err, one.out);
    CHECK(one.code() == 0);
    CHECK(one.err.empty());
    if (rank != 0) CHECK(one.out.empty());
  }
  const std::string& table = outcomes[0].out;
  CAPTURE(table);
  CHECK(table.find(concat("ranks: ", size, "  backend: ", backend)) != std::string::npos);
  CHECK(table.find("# Out of bounds values : 0 OK\n") != std::string::npos);
  CHECK(table.find("# Avg bus bandwidth") != std::string::npos);
  const auto results = rows_of(table);
  REQUIRE(results.size() == rows);
  for (const auto& row : results) {
    REQUIRE(row.size() == 13);
    CHECK(std::stoull(row[0]) == 4 * std::stoull(row[1]));
    CHECK(row[2] == "float");
    CHECK(row[3] == "sum");
    CHECK(row[4] == "-1");
    CHECK(std::stod(row[5]) > 0);
    CHECK(row[8] == "0");
    CHECK(row[12] == "0");
    for (const std::size_t column : {7, 11}) {
      CHECK((size == 1 ? row[column] == "0.00" : row[column] != "N/A"));  // one rank moves no data
    }
  }
}

}  // namespace

TEST_CASE("the worker sums right over shared memory and over tcp") {
  const std::string backend = GENERATE("shm", "tcp");
  for (const int size : {1, 3, 8}) {
    check_success(size, {"--backend=" + backend, "-e", "1M", "-f", "8", "-n", "5"}, backend, 6);
  }
}

TEST_CASE("the worker sums right for sixty-four ranks", "[full]") {
  const std::string backend = GENERATE("shm", "tcp");
  check_success(64, {"--backend=" + backend, "-e", "32K", "-f", "16", "-n", "2", "-w", "1"}, backend, 4);
}

TEST_CASE("every collective is right in private memory of several processes") {
  const std::string backend = GENERATE("shm", "tcp");
  Ranks ranks(3, {"--backend=" + backend, "--buffers=private", "--collective=all", "-b", "1M", "-e", "1M", "-n", "2"});
  const auto outcomes = ranks.wait();
  for (const Outcome& one : outcomes) {
    CAPTURE(backend, one.err);
    CHECK(one.code() == 0);
  }
  CHECK(outcomes[0].out.find("# buffers  : private memory") != std::string::npos);
}

TEST_CASE("sizes may grow by steps and need not divide by the number of ranks") {
  check_success(3, {"-b", "1003", "-e", "2007", "-i", "501", "-n", "2"}, "shm", 3);
}

TEST_CASE("the report is valid and replaces an older one") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("report.json");
  write_file(path, std::string(100000, 'x'));
  Ranks ranks(3, {"-e", "1K", "-f", "2", "-n", "7", "-J", path});
  const auto outcomes = ranks.wait();
  REQUIRE(outcomes[0].code() == 0);
  const auto report = nlohmann::json::parse(read_file(path));
  CHECK(report["world_size"] == 3);
  CHECK(report["backend"] == "shm");
  CHECK(report["ok"] == true);
  CHECK(report["out_of_bounds"] == 0);
  REQUIRE(report["ranks"].size() == 3);
  CHECK(report["ranks"][1]["pid"] == ranks[1].pid());
  REQUIRE(report["results"].size() == 8);
  CHECK(report["results"][7]["size"] == 1024);
  CHECK(report["results"][7]["count"] == 256);
  CHECK(report["results"][7]["in_place"]["wrong"] == 0);
  CHECK(report["results"][7]["in_place"]["iterations"] == 7);
  for (const char* placement : {"out_of_place", "in_place"}) {
    const auto& one = report["results"][7][placement];
    CHECK(one["samples"].get<int>() > 0);
    CHECK(one["min_us"].get<double>() > 0);
    CHECK(one["min_us"].get<double>() <= one["median_us"].get<double>());
    CHECK(one["median_us"].get<double>() <= one["p99_us"].get<double>());
    const auto algbw = one["algbw_gbps"].get<double>();
    CHECK(std::abs(algbw * one["time_us"].get<double>() * 1e3 - 1024) < 1);
    // 2 (n - 1) / n, for three ranks.
    CHECK(std::abs(one["busbw_gbps"].get<double>() - algbw * 4 / 3) < 1e-9);
  }
}

TEST_CASE("the header says what was measured where and when") {
  Ranks ranks(2, {"-e", "8", "-n", "2"});
  const auto outcomes = ranks.wait();
  REQUIRE(outcomes[0].code() == 0);
  const std::string& out = outcomes[0].out;
  CAPTURE(out);
  CHECK(out.find("# ddrun-allreduce ") == 0);
  CHECK(lines_of(out)[0].find("  ranks: 2  backend: shm  (all ranks are on one machine)") != std::string::npos);
  for (const char* fact : {"# machine  : ", "# library  : ddrun ", "# topology : ranks 0,1 on ",
                           "# clock    : steady, ", "# date     : 20"}) {
    CAPTURE(fact);
    CHECK(out.find(fact) != std::string::npos);
  }
}

TEST_CASE("without checks nothing is counted as wrong") {
  Ranks ranks(2, {"-e", "8", "-c", "0", "-n", "2"});
  const auto outcomes = ranks.wait();
  REQUIRE(outcomes[0].code() == 0);
  const auto rows = rows_of(outcomes[0].out);
  REQUIRE(rows.size() == 1);
  CHECK(rows[0][8] == "N/A");
}

TEST_CASE("without a launcher the worker runs as a singleton and reports it") {
  Run run({DDRUN_TEST_ALLREDUCE, "-e", "1K", "-n", "2"});
  const Outcome outcome = run.wait();
  CHECK(outcome.code() == 0);
  CHECK(outcome.out.find("no launcher: RANK and WORLD_SIZE are not set, so this is a group of one") !=
        std::string::npos);
}

TEST_CASE("without a launcher's store rank 0 serves it") {
  // A port that was free a moment ago.
  const int port = [] {
    auto server = store::TcpServer::start();
    REQUIRE(server);
    return static_cast<int>((*server)->port());
  }();
  std::vector<std::unique_ptr<Run>> ranks;
  for (const int rank : {1, 0}) {
    RunOptions options;
    options.env = {{"RANK", std::to_string(rank)},
                   {"WORLD_SIZE", "2"},
                   {"MASTER_ADDR", "localhost"},
                   {"MASTER_PORT", std::to_string(port)}};
    ranks.push_back(
        std::make_unique<Run>(std::vector<std::string>{DDRUN_TEST_ALLREDUCE, "-e", "1K", "-n", "2"}, options));
  }
  for (const auto& rank : ranks) {
    const Outcome outcome = rank->wait();
    CAPTURE(outcome.err);
    CHECK(outcome.code() == 0);
  }
}
