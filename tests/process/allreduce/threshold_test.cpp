// Exit statuses with --min-busbw and --max-latency.

#include "ranks.hpp"

using namespace ddrun;
using namespace ddrun::test;

TEST_CASE("all ranks exit with status 3 and rank 0 reports why") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("report.json");
  Ranks ranks(3, {"-b", "1K", "-e", "4K", "-n", "2", "--min-busbw=1000000,2000000@1K", "-J", path});
  const auto outcomes = ranks.wait();
  // Either of the two sizes may be the worse one.
  check_ends(outcomes[0], 3, "too slow: all_reduce of ");
  CHECK(outcomes[0].err.find(" (1 more fell short)\n") != std::string::npos);
  for (const char* size : {"1 KiB", "4 KiB"}) {
    CHECK(outcomes[0].out.find(concat("# Fell short: all_reduce of ", size, " float sum ")) != std::string::npos);
  }
  for (const int rank : {1, 2}) {
    CHECK(outcomes[static_cast<std::size_t>(rank)].code() == 3);
    CHECK(outcomes[static_cast<std::size_t>(rank)].err.empty());
  }
  const auto report = nlohmann::json::parse(read_file(path));
  CHECK(report["fell_short"].size() == 2);
  CHECK(report["ok"] == true);
}

TEST_CASE("a wrong element is worse than being slow") {
  Ranks ranks(2, {"-b", "1K", "-e", "1K", "-n", "2", "--corrupt-rank=1", "--min-busbw=1000000"});
  for (const Outcome& one : ranks.wait()) CHECK(one.code() == 1);
}

TEST_CASE("a size that no rank measures is refused on all of them") {
  Ranks ranks(2, {"-b", "1K", "-e", "4K", "-n", "2", "--max-latency=1s@3K"});
  for (const Outcome& one : ranks.wait()) {
    check_ends(one, 2, "--max-latency: all_reduce of float sum is not measured at 3 KiB");
    CHECK(one.out.empty());
  }
}

TEST_CASE("all ranks exit with status 3 if a pair misses a threshold") {
  Ranks ranks(3, {"--pairs", "-e", "64K", "-n", "3", "--min-busbw=1000000"});
  const auto outcomes = ranks.wait();
  check_ends(outcomes[0], 3, " 1000000 GB/s wanted: ");
  CHECK(outcomes[0].err.find("; 3 of 3 pairs fell short, worst node rank ") != std::string::npos);
  for (const Outcome& one : outcomes) CHECK(one.code() == 3);
}
