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
    CHECK((row[7] == "N/A") == (size == 1));  // nothing travels
    CHECK((row[10] == "N/A") == (size == 1));
    CHECK(row[8] == "0");
    CHECK(row[12] == "0");
  }
}

}  // namespace

TEST_CASE("the worker sums right for one to sixty-four ranks in shared memory") {
  for (const int size : {1, 2, 3, 4, 8}) check_success(size, {"-e", "1M", "-f", "8", "-n", "5"}, "shm", 6);
  check_success(64, {"-e", "64K", "-f", "16", "-n", "3"}, "shm", 4);
}

TEST_CASE("the worker sums right in private memory") {
  for (const char* backend : {"shm", "tcp"}) {
    check_success(2, {"--backend", backend, "--buffers=private", "-e", "1M", "-f", "8", "-n", "5"}, backend, 6);
  }
  const Outcome one = Ranks(1, {"--buffers=private", "-e", "8", "-n", "1"}).wait()[0];
  CHECK(one.out.find("# buffers  : private memory") != std::string::npos);
}

TEST_CASE("every collective is right in private memory of several processes") {
  for (const char* collective : {"all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "gather",
                                 "scatter", "all_to_all", "send_recv"}) {
    Ranks ranks(3, {"--backend=shm", "--buffers=private", concat("--collective=", collective), "-b", "3M", "-e", "3M",
                    "-n", "3"});
    for (const Outcome& one : ranks.wait()) {
      CAPTURE(collective, one.err);
      CHECK(one.code() == 0);
    }
  }
}

TEST_CASE("the worker sums right for two to sixty-four ranks over tcp") {
  for (const int size : {2, 3, 4, 8}) {
    check_success(size, {"--backend=tcp", "-e", "1M", "-f", "8", "-n", "5"}, "tcp", 6);
  }
  check_success(64, {"--backend=tcp", "-e", "32K", "-f", "16", "-n", "2", "-w", "1"}, "tcp", 4);
}

TEST_CASE("the worker reduces every type with every operation") {
  const std::vector<std::string> types{"int8",   "uint8", "int32", "uint32", "int64",
                                       "uint64", "half",  "float", "double", "bfloat16"};
  const std::vector<std::string> ops{"sum", "prod", "max", "min", "avg"};
  const std::vector<std::uint64_t> element{1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  for (const char* backend : {"--backend=shm", "--backend=tcp"}) {
    const TemporaryDirectory directory;
    const std::string path = directory.file("report.json");
    Ranks ranks(3, {"-d", "all", "-o", "all", "-b", "40", "-e", "160K", "-f", "64", "-n", "2", backend, "-J", path});
    const auto outcomes = ranks.wait();
    CAPTURE(backend, outcomes[0].err);
    for (const Outcome& one : outcomes) REQUIRE(one.code() == 0);
    const auto rows = rows_of(outcomes[0].out);
    const auto report = nlohmann::json::parse(read_file(path));
    CHECK(report["type"] == "all");
    REQUIRE(rows.size() == types.size() * ops.size() * 3);
    REQUIRE(report["results"].size() == rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      CAPTURE(i);
      CHECK(std::stoull(rows[i][0]) == element[i / 15] * std::stoull(rows[i][1]));
      CHECK(rows[i][2] == types[i / 15]);
      CHECK(rows[i][3] == ops[i / 3 % 5]);
      CHECK(rows[i][8] == "0");
      CHECK(rows[i][12] == "0");
      CHECK(report["results"][i]["type"] == rows[i][2]);
      CHECK(report["results"][i]["redop"] == rows[i][3]);
      CHECK(report["results"][i]["root"] == -1);
    }
  }
}

TEST_CASE("the report has median, 99th percentile and minimum in order") {
  Ranks ranks(2, {"-b", "64", "-e", "64K", "-f", "32", "-n", "50", "-J", "/dev/stderr"});
  const auto outcomes = ranks.wait();
  REQUIRE(outcomes[0].code() == 0);
  const auto report = nlohmann::json::parse(outcomes[0].err);
  REQUIRE(report["results"].size() == 3);
  for (const auto& row : report["results"]) {
    for (const char* placement : {"out_of_place", "in_place"}) {
      const auto& one = row[placement];
      CHECK(one["samples"].get<int>() > 0);
      CHECK(one["min_us"].get<double>() > 0);
      CHECK(one["min_us"].get<double>() <= one["median_us"].get<double>());
      CHECK(one["median_us"].get<double>() <= one["p99_us"].get<double>());
    }
  }
}

TEST_CASE("sizes may grow by steps and need not divide by the number of ranks") {
  check_success(3, {"-b", "1003", "-e", "2007", "-i", "501", "-n", "2"}, "shm", 3);
}

TEST_CASE("bus bandwidth is algorithm bandwidth times two n minus one over n") {
  Ranks ranks(4, {"-b", "1M", "-e", "1M", "-n", "3", "-J", "/dev/stderr"});
  const auto outcomes = ranks.wait();
  REQUIRE(outcomes[0].code() == 0);
  const auto report = nlohmann::json::parse(outcomes[0].err);
  for (const char* placement : {"out_of_place", "in_place"}) {
    const auto& one = report["results"][0][placement];
    const auto algbw = one["algbw_gbps"].get<double>();
    CHECK(std::abs(algbw * one["time_us"].get<double>() * 1e3 - (1 << 20)) < 1);
    CHECK(std::abs(one["busbw_gbps"].get<double>() - algbw * 1.5) < 1e-9);
  }
}

TEST_CASE("the report is valid and replaces an older one") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("report.json");
  write_file(path, std::string(100000, 'x'));
  Ranks ranks(2, {"-e", "1K", "-f", "2", "-n", "7", "-J", path});
  const auto outcomes = ranks.wait();
  REQUIRE(outcomes[0].code() == 0);
  const auto report = nlohmann::json::parse(read_file(path));
  CHECK(report["world_size"] == 2);
  CHECK(report["backend"] == "shm");
  CHECK(report["ok"] == true);
  CHECK(report["out_of_bounds"] == 0);
  REQUIRE(report["ranks"].size() == 2);
  CHECK(report["ranks"][1]["pid"] == ranks[1].pid());
  REQUIRE(report["results"].size() == 8);
  CHECK(report["results"][7]["size"] == 1024);
  CHECK(report["results"][7]["count"] == 256);
  CHECK(report["results"][7]["in_place"]["wrong"] == 0);
  CHECK(report["results"][7]["in_place"]["iterations"] == 7);
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

TEST_CASE("each collective has a heading of its own over the columns of nccl-tests") {
  Ranks ranks(2, {"-e", "8", "-n", "2", "--collective", "barrier,all_reduce"});
  const auto outcomes = ranks.wait();
  REQUIRE(outcomes[0].code() == 0);
  const std::string& out = outcomes[0].out;
  CAPTURE(out);
  const auto barrier = out.find("#\n# barrier\n#");
  const auto all_reduce = out.find("#\n# all_reduce\n#");
  REQUIRE(barrier != std::string::npos);
  REQUIRE(all_reduce != std::string::npos);
  CHECK(barrier < all_reduce);
  std::vector<std::vector<std::string>> titles;
  for (const std::string& line : lines_of(out)) {
    std::vector<std::string> words = split(line, ' ');
    std::erase(words, "");
    if (words.size() > 1 && words[1] == "size") titles.push_back(words);
  }
  const std::vector<std::string> expected{"#",     "size",  "count",  "type", "redop", "root",  "time",
                                          "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong"};
  CHECK(titles == std::vector<std::vector<std::string>>(2, expected));
  const auto rows = rows_of(out);
  REQUIRE(rows.size() == 2);
  CHECK(rows[0] == std::vector<std::string>{"0", "0", "float", "none", "-1", rows[0][5], "N/A", "N/A", "N/A",
                                            rows[0][9], "N/A", "N/A", "N/A"});
}

TEST_CASE("without checks nothing is counted as wrong") {
  Ranks ranks(2, {"-e", "8", "-c", "0", "-n", "2"});
  const auto outcomes = ranks.wait();
  REQUIRE(outcomes[0].code() == 0);
  const auto rows = rows_of(outcomes[0].out);
  REQUIRE(rows.size() == 1);
  CHECK(rows[0][8] == "N/A");
}

TEST_CASE("without a launcher the worker is a group of one and says so") {
  Run run({DDRUN_TEST_ALLREDUCE, "-e", "1K", "-n", "2"});
  const Outcome outcome = run.wait();
  CHECK(outcome.code() == 0);
  CHECK(outcome.out.find("no launcher: RANK and WORLD_SIZE are not set, so this is a group of one") !=
        std::string::npos);
}

TEST_CASE("where no launcher serves the store rank 0 does") {
  // A free port, known before: that of a server that has just gone.
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
