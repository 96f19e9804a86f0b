// --min-busbw, --max-latency and --compare: what falls short, and who ends how.

#include "report_files.hpp"

using namespace ddrun;
using namespace ddrun::test;

namespace {

/// How the program ends that judges this report.
Outcome judged(const nlohmann::json& report, const std::vector<std::string>& more) {
  const TemporaryDirectory directory;
  std::vector<std::string> args{"--from", directory.file("now.json", report.dump())};
  args.insert(args.end(), more.begin(), more.end());
  return run_alone(args);
}

Outcome compared(const nlohmann::json& old, const nlohmann::json& now, const std::vector<std::string>& more = {}) {
  const TemporaryDirectory directory;
  std::vector<std::string> args{"--compare", directory.file("old.json", old.dump())};
  args.insert(args.end(), more.begin(), more.end());
  return judged(now, args);
}

void check_good(const Outcome& outcome) {
  CAPTURE(outcome.err);
  CHECK(outcome.code() == 0);
  CHECK(outcome.err.empty());
}

}  // namespace

TEST_CASE("bandwidth is asked of the largest size, latency of the smallest, unless a size is named") {
  const auto report = usual_report();
  check_good(judged(report, {"--min-busbw=6", "--max-latency=2us"}));
  check_good(judged(report, {"--min-busbw=10@1M,1@1K", "--max-latency=0.1ms@1MiB,4000ns@1K,0.01s@64M"}));
  check_ends(judged(report, {"--min-busbw=6.5GB/s"}), 3,
             "too slow: all_reduce of 64 MiB float sum out of place: busbw 6 GB/s, 6.5 wanted: 7.69 % less\n");
  check_ends(judged(report, {"--min-busbw=20@1M"}), 3,
             "1 MiB float sum out of place: busbw 10 GB/s, 20 wanted: 50 % less");
  check_ends(judged(report, {"--max-latency=1.6us"}), 3,
             "all_reduce of 8 B float sum out of place: latency 2 us, 1.6 us wanted: 25 % more\n");
  check_ends(judged(report, {"--max-latency=50us@1M"}), 3, "latency 100 us, 50 us wanted: 100 % more");
}

TEST_CASE("the better placement counts, and the worst of several shortfalls is said") {
  auto report = usual_report();
  report["results"][3]["in_place"]["time_us"] = 5000;
  report["results"][3]["in_place"]["busbw_gbps"] = 12;
  check_good(judged(report, {"--min-busbw=12"}));
  check_ends(judged(report, {"--min-busbw=13"}), 3, "64 MiB float sum in place: busbw 12 GB/s, 13 wanted");
  const Outcome outcome = judged(report, {"--min-busbw=13,40@1M", "--max-latency=1.9us"});
  check_ends(outcome, 3, "1 MiB float sum out of place: busbw 10 GB/s, 40 wanted: 75 % less (2 more fell short)");
  CHECK(lines_of(outcome.out).size() == 3);
  for (const std::string& line : lines_of(outcome.out)) CHECK(line.starts_with("# Fell short: all_reduce of "));
}

TEST_CASE("each case is judged, a barrier by its time alone") {
  auto report = usual_report();
  auto other = result_of(1 << 20, 3, 300);
  other["collective"] = "broadcast";
  other["redop"] = "none";
  other["root"] = 1;
  auto barrier = result_of(0, 0, 7);
  barrier["collective"] = "barrier";
  report["results"].push_back(other);
  report["results"].push_back(barrier);
  check_ends(judged(report, {"--min-busbw=4"}), 3, "broadcast of 1 MiB float from rank 1 out of place: busbw 3 GB/s");
  check_ends(judged(report, {"--max-latency=300us,6us"}), 3, "broadcast of 1 MiB");
  check_ends(judged(report_of({barrier}), {"--max-latency=6us"}), 3, "barrier out of place: latency 7 us, 6 us wanted");
  check_ends(judged(report_of({barrier}), {"--min-busbw=1"}), 2, "--min-busbw: nothing is measured that has it");
}

TEST_CASE("what a back end lacks falls short of any threshold") {
  auto report = usual_report();
  for (const char* placement : {"out_of_place", "in_place"}) {
    report["results"][3][placement] = {{"time_us", nullptr}, {"lacking", "nccl has no all_reduce, says the test"}};
  }
  check_ends(judged(report, {"--min-busbw=1"}), 3,
             "all_reduce of 64 MiB float sum: not measured: nccl has no all_reduce, says the test");
}

TEST_CASE("thresholds that say nothing are refused") {
  check_ends(run_alone({"--min-busbw=fast"}), 2, "--min-busbw: must be GB/s such as 10 or 10@64M, not 'fast'");
  check_ends(run_alone({"--min-busbw=-1"}), 2, "--min-busbw: must be ");
  check_ends(run_alone({"--min-busbw=1,"}), 2, "--min-busbw: must be ");
  check_ends(run_alone({"--min-busbw=1@much"}), 2, "--min-busbw: ");
  check_ends(run_alone({"--max-latency=20"}), 2, "--max-latency: must be a time such as 20us or 1.5ms@64K, not '20'");
  check_ends(run_alone({"--max-latency=0us"}), 2, "--max-latency: must be ");
  check_ends(run_alone({"--tolerance=5%"}), 2, "--tolerance: is for --compare");
  for (const std::string tolerance : {"5", "100%", "-1%", "x"}) {
    check_ends(run_alone({"--compare=x", "--tolerance=" + tolerance}), 2,
               "--tolerance: must be 0% to less than 100%, for example 10%, not '" + tolerance);
  }
  check_ends(run_alone({"--min-busbw=1", "-e", "1K"}), 2, "--min-busbw: a group of one has no bus bandwidth");
  check_ends(judged(usual_report(), {"--min-busbw=1@2M"}), 2,
             "--min-busbw: all_reduce of float sum is not measured at 2 MiB, only at 4 sizes from 8 B to 64 MiB");
}

TEST_CASE("all ranks end with status 3 and rank 0 says why") {
  for (const char* backend : {"--backend=shm", "--backend=tcp"}) {
    const TemporaryDirectory directory;
    const std::string path = directory.file("report.json");
    Ranks ranks(3, {"-b", "1K", "-e", "4K", "-n", "2", "--min-busbw=1000000", backend, "-J", path});
    const auto outcomes = ranks.wait();
    check_ends(outcomes[0], 3, "too slow: all_reduce of 4 KiB float sum ");
    CHECK(outcomes[0].out.find("# Fell short: all_reduce of 4 KiB float sum ") != std::string::npos);
    for (const int rank : {1, 2}) {
      CHECK(outcomes[static_cast<std::size_t>(rank)].code() == 3);
      CHECK(outcomes[static_cast<std::size_t>(rank)].err.empty());
    }
    const auto report = nlohmann::json::parse(read_file(path));
    CHECK(report["fell_short"].size() == 1);
    CHECK(report["ok"] == true);
  }
}

TEST_CASE("a wrong element is worse than being slow") {
  Ranks ranks(2, {"-b", "1K", "-e", "1K", "-n", "2", "--corrupt-rank=1", "--min-busbw=1000000"});
  for (const Outcome& one : ranks.wait()) CHECK(one.code() == 1);
  auto report = usual_report();
  report["out_of_bounds"] = 3;
  CHECK(judged(report, {"--min-busbw=1000"}).code() == 1);
}

TEST_CASE("a size that no rank measures is refused on all of them") {
  Ranks ranks(2, {"-b", "1K", "-e", "4K", "-n", "2", "--max-latency=1s@3K"});
  for (const Outcome& one : ranks.wait()) {
    check_ends(one, 2, "--max-latency: all_reduce of float sum is not measured at 3 KiB");
    CHECK(one.out.empty());
  }
}

TEST_CASE("a run is compared with one of before, row by row") {
  const auto old = usual_report();
  check_good(compared(old, old));
  check_good(compared(old, old, {"--tolerance=0%"}));
  auto now = old;
  now["results"][2]["in_place"] = {{"time_us", 125}, {"algbw_gbps", 8}, {"busbw_gbps", 8}};
  check_ends(
      compared(old, now), 3,
      "too slow: all_reduce of 1 MiB float sum in place: busbw 8 GB/s, 10 in old.json: 20 % slower, 10 % allowed\n");
  check_good(compared(old, now, {"--tolerance=20%"}));
  check_good(compared(now, old, {"--tolerance=0%"}));
  now["results"][0]["out_of_place"]["time_us"] = 8;
  check_ends(compared(old, now), 3,
             "8 B float sum out of place: time 8 us, 2 us in old.json: 75 % slower, 10 % allowed (1 more fell short)");
}

TEST_CASE("only rows that are the same are compared, and others are counted") {
  const auto old = usual_report();
  auto now = report_of({result_of(1024, 1, 4), result_of(4096, 0.001, 4000)});
  now["backend"] = "tcp";
  const Outcome outcome = compared(old, now);
  check_good(outcome);
  const auto lines = lines_of(outcome.out);
  REQUIRE(lines.size() == 4);
  CHECK(lines[0].find("old.json: 0 of 2 measurements are slower than allowed") != std::string::npos);
  CHECK(lines[1] == "# 2 measurements of this run are not in old.json");
  CHECK(lines[2] == "# 6 measurements of old.json are not in this run");
  CHECK(lines[3] == "# back end tcp, shm in old.json");
}

TEST_CASE("what cannot be compared is refused before anything is measured") {
  const TemporaryDirectory directory;
  const auto refused = [&](const nlohmann::json& old, const std::string& words) {
    const std::string path = directory.file("old.json", old.dump());
    Ranks ranks(2, {"-b", "1K", "-e", "1K", "-n", "2", "--compare", path});
    for (const Outcome& one : ranks.wait()) {
      check_ends(one, 2, "--compare: " + path + words);
      CHECK(one.out.empty());
    }
  };
  auto old = usual_report();
  old["world_size"] = 4;
  refused(old, " is of 4 ranks, this run has 2");
  old = usual_report();
  old["error"] = "rank 1 is gone";
  refused(old, " is of a run that ended early: rank 1 is gone");
  old = usual_report();
  old["out_of_bounds"] = 5;
  refused(old, " is of a run with 5 wrong elements");
  refused(report_of({result_of(8, 1, 1)}), " has nothing that this run measures");
}

TEST_CASE("files of another kind are refused as what they are") {
  const TemporaryDirectory directory;
  const auto refused = [&](const std::string& path, const std::string& words) {
    check_ends(run_alone({"--compare", path}), 2, concat("--compare: ", words));
  };
  const std::string none = directory.file("none.json");
  refused(none, "cannot read " + none + ": No such file or directory");
  refused(directory.path(), "cannot read " + directory.path() + ": Is a directory");
  const std::string path = directory.file("old.json");
  for (const auto& [text, words] : std::vector<std::pair<std::string, std::string>>{
           {"", " is no JSON, at byte 1"},
           {"size,count\n8,2\n", " is no JSON, at byte 1"},
           {"[1, 2]", ": it was not written by ddrun-allreduce -J"},
           {R"({"nccl_tests": "all_reduce_perf"})", ": it was not written by ddrun-allreduce -J"},
           {R"({"program": 7})", " is no report of ddrun-allreduce -J: "},
           {R"({"program": "ddrun-allreduce"})", " is no report of ddrun-allreduce -J: key 'backend' not found"}}) {
    write_file(path, text);
    refused(path, path + words);
  }
  auto odd = usual_report();
  odd["results"][0]["type"] = "fp8";
  write_file(path, odd.dump());
  refused(path, path + ": 'fp8' is not known to this version");
}

namespace {

/// Four nodes, of which c is slow.
nlohmann::json pairs_report() {
  auto report = report_of({});
  const auto matrix = [](std::vector<double> six) {
    nlohmann::json rows(4, nlohmann::json(4, nullptr));
    std::size_t next = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      for (std::size_t j = i + 1; j < 4; ++j) rows[i][j] = rows[j][i] = six[next++];
    }
    return rows;
  };
  report["buffers"] = "shared";
  report["pairs"] = {{"nodes", {"a", "b", "c", "d"}},
                     {"steps", 3},
                     {"ranks_per_node", 1},
                     {"bytes", 1 << 20},
                     {"gbps", matrix({10, 3, 9.5, 2, 9.5, 4})},
                     {"median_us", matrix({5, 9, 5, 20, 5, 10})},
                     {"min_us", matrix({4, 8, 4, 10, 4, 9})},
                     {"slowest", {1, 2}},
                     {"latest", {1, 2}},
                     {"worst_node", 2}};
  return report;
}

}  // namespace

TEST_CASE("every pair has to reach a threshold, and the worst pair and node are named") {
  const auto report = pairs_report();
  check_good(judged(report, {"--min-busbw=2", "--max-latency=20us"}));
  check_ends(
      judged(report, {"--min-busbw=9"}), 3,
      "too slow: pair b and c: bandwidth 2 GB/s, 9 GB/s wanted: 77.8 % less; 3 of 6 pairs fell short, worst node c\n");
  check_ends(judged(report, {"--max-latency=8us"}), 3,
             "too slow: pair b and c: latency 20 us, 8 us wanted: 150 % more; 3 of 6 pairs fell short, worst node c\n");
  check_ends(judged(report, {"--min-busbw=1@1M"}), 2, "--min-busbw: pairs are measured at one size, so name none");
  check_ends(judged(report, {"--max-latency=1us@8"}), 2, "--max-latency: pairs are measured at one size, so name none");
}

TEST_CASE("pairs are compared with those of the same nodes") {
  const auto old = pairs_report();
  check_good(compared(old, old, {"--tolerance=0%"}));
  auto now = old;
  now["pairs"]["gbps"][0][1] = now["pairs"]["gbps"][1][0] = 5;
  const Outcome slower = compared(old, now);
  check_ends(slower, 3,
             "too slow: pair a and b: bandwidth 5 GB/s, 10 GB/s in old.json: 50 % slower, 10 % allowed; 1 of 6 pairs "
             "fell short, worst node c\n");
  CHECK(slower.out.find("old.json: 1 of 12 measurements are slower than allowed") != std::string::npos);
  now = old;
  now["pairs"]["nodes"] = {"d", "x", "y", "a"};
  for (const auto& [one, other] : {std::pair(0, 3), {3, 0}}) now["pairs"]["median_us"][one][other] = 500;
  check_ends(compared(old, now), 3,
             "pair d and a: latency 500 us, 5 us in old.json: 99 % slower, 10 % allowed; 1 of 1 pair ");
  now["pairs"]["nodes"] = {"d", "x", "y", "z"};
  check_ends(compared(old, now), 3, "too slow: no pair of nodes of this run is in old.json");
  now["pairs"]["bytes"] = 8;
  check_ends(compared(old, now), 2, " is of pairs with 1048576 bytes, this run has 8 (--maxbytes)");
  check_ends(compared(usual_report(), old), 2, " has no pairs, which are all that this run measures");
  check_ends(compared(old, usual_report()), 2, " has nothing that this run measures");
}

TEST_CASE("all ranks end with status 3 if a pair falls short") {
  Ranks ranks(3, {"--pairs", "-e", "64K", "-n", "3", "--min-busbw=1000000"});
  const auto outcomes = ranks.wait();
  check_ends(outcomes[0], 3, " 1000000 GB/s wanted: ");
  CHECK(outcomes[0].err.find("; 3 of 3 pairs fell short, worst node rank ") != std::string::npos);
  for (const Outcome& one : outcomes) CHECK(one.code() == 3);
}

TEST_CASE("a report of other buffers is refused") {
  auto old = usual_report();
  auto now = old;
  now["buffers"] = "shared";
  check_good(compared(old, now));  // an older version did not say
  old["buffers"] = "private";
  check_ends(compared(old, now), 2, " is of private buffers, this run has shared ones (--buffers)");
  const TemporaryDirectory directory;
  const std::string path = directory.file("old.json", old.dump());
  check_ends(run_alone({"-b", "1K", "-e", "1K", "-n", "2", "--compare", path}), 2, " is of 2 ranks, this run has 1");
  old["world_size"] = 1;
  write_file(path, old.dump());
  const std::vector<std::string> args{"-b", "1K", "-e", "1K", "-n", "2", "--tolerance=99%", "--compare", path};
  check_ends(run_alone(args), 2, " is of private buffers, this run has shared ones (--buffers)");
}

TEST_CASE("a report can be compared with a run of the same options that has just been") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("old.json");
  const std::vector<std::string> args{"-b", "1K", "-e", "4K", "-n", "2"};
  auto write = args;
  write.insert(write.end(), {"-J", path});
  Ranks first(2, write);
  REQUIRE(first.wait()[0].code() == 0);
  // Twice as slow as something a thousand times slower it cannot be.
  auto old = nlohmann::json::parse(read_file(path));
  for (auto& row : old["results"]) {
    for (const char* placement : {"out_of_place", "in_place"}) {
      row[placement]["time_us"] = row[placement]["time_us"].get<double>() * 1e6;
    }
  }
  write_file(path, old.dump());
  auto compare = args;
  compare.insert(compare.end(), {"--compare", path});
  Ranks second(2, compare);
  const auto outcomes = second.wait();
  CHECK(outcomes[0].code() == 0);
  CHECK(outcomes[0].out.find("old.json: 0 of 6 measurements are slower than allowed") != std::string::npos);
}
