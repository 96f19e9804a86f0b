// --min-busbw and --max-latency.

#include "reports.hpp"

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::bench;

namespace {

/// Both placements take the same time.
Row row_of(std::uint64_t bytes, double busbw, double microseconds) {
  Row row;
  row.bytes = bytes;
  row.count = bytes / 4;
  for (Measurement* one : {&row.out_of_place, &row.in_place}) {
    one->microseconds = microseconds;
    one->busbw = busbw;
  }
  return row;
}

Report report_of(std::vector<Row> rows) {
  Report report;
  report.setting.size = 2;
  report.summary.rows = std::move(rows);
  return report;
}

Report usual_report() {
  return report_of({row_of(8, 0.004, 2), row_of(1024, 1, 4), row_of(1 << 20, 10, 100), row_of(64 << 20, 6, 10000)});
}

struct Requested {
  std::string busbw;
  std::string latency;
};

Result<Thresholds> thresholds_of(const Requested& requested) {
  Thresholds thresholds;
  if (!requested.busbw.empty()) {
    auto parsed = parse_min_busbw(requested.busbw);
    if (!parsed) return tl::unexpected(parsed.error());
    thresholds.min_busbw = *parsed;
  }
  if (!requested.latency.empty()) {
    auto parsed = parse_max_latency(requested.latency);
    if (!parsed) return tl::unexpected(parsed.error());
    thresholds.max_latency = *parsed;
  }
  return thresholds;
}

/// Texts of the violations, or the error of invalid thresholds.
std::vector<std::string> check(const Report& report, const Requested& requested) {
  const auto thresholds = thresholds_of(requested);
  if (!thresholds) return {thresholds.error().message};
  if (const auto good = check_thresholds(*thresholds, report); !good) return {good.error().message};
  std::vector<std::string> words;
  for (const Violation& one : threshold_failures(*thresholds, report.summary)) words.push_back(one.text);
  return words;
}

using Words = std::vector<std::string>;

}  // namespace

TEST_CASE("bandwidth is checked at the largest size, latency at the smallest, unless a size is named") {
  const Report report = usual_report();
  CHECK(check(report, {"6", "2us"}).empty());
  CHECK(check(report, {"10@1M,1@1K", "0.1ms@1MiB,4000ns@1K,0.01s@64M"}).empty());
  CHECK(check(report, {"6.5GB/s", ""}) ==
        Words{"all_reduce of 64 MiB float sum out of place: busbw 6 GB/s, 6.5 wanted: 7.69 % less"});
  CHECK(check(report, {"20@1M", ""}) ==
        Words{"all_reduce of 1 MiB float sum out of place: busbw 10 GB/s, 20 wanted: 50 % less"});
  CHECK(check(report, {"", "1.6us"}) ==
        Words{"all_reduce of 8 B float sum out of place: latency 2 us, 1.6 us wanted: 25 % more"});
  CHECK(check(report, {"", "50us@1M"}) ==
        Words{"all_reduce of 1 MiB float sum out of place: latency 100 us, 50 us wanted: 100 % more"});
}

TEST_CASE("the better placement counts, and each threshold that is missed") {
  Report report = usual_report();
  report.summary.rows[3].in_place.microseconds = 5000;
  report.summary.rows[3].in_place.busbw = 12;
  CHECK(check(report, {"12", ""}).empty());
  CHECK(check(report, {"13", ""}) ==
        Words{"all_reduce of 64 MiB float sum in place: busbw 12 GB/s, 13 wanted: 7.69 % less"});
  CHECK(check(report, {"13,40@1M", "1.9us"}).size() == 3);
}

TEST_CASE("each case is checked, a barrier only for latency") {
  Report report = usual_report();
  Row other = row_of(1 << 20, 3, 300);
  other.spec.collective = collectives::Collective::broadcast;
  other.spec.root = 1;
  Row barrier = row_of(0, 0, 7);
  barrier.spec.collective = collectives::Collective::barrier;
  report.summary.rows.push_back(other);
  report.summary.rows.push_back(barrier);
  CHECK(check(report, {"4", ""}) ==
        Words{"broadcast of 1 MiB float from rank 1 out of place: busbw 3 GB/s, 4 wanted: 25 % less"});
  CHECK(check(report, {"", "300us,6us"}) ==
        Words{"broadcast of 1 MiB float from rank 1 out of place: latency 300 us, 6 us wanted: 4900 % more",
              "barrier out of place: latency 7 us, 6 us wanted: 16.7 % more"});
  CHECK(check(report_of({barrier}), {"1", ""}) == Words{"--min-busbw: nothing is measured that has it"});
}

TEST_CASE("an unsupported call misses any threshold") {
  Report report = usual_report();
  for (Measurement* one : {&report.summary.rows[3].out_of_place, &report.summary.rows[3].in_place}) {
    *one = {};
    one->unsupported_reason = "nccl has no all_reduce, says the test";
  }
  CHECK(check(report, {"1", ""}) ==
        Words{"all_reduce of 64 MiB float sum: not measured: nccl has no all_reduce, says the test"});
}

TEST_CASE("invalid thresholds are refused") {
  for (const std::string bad : {"fast", "-1", "1,"}) {
    CHECK(check(usual_report(), {bad, ""})[0].find("must be GB/s such as 10 or 10@64M, not '") == 0);
  }
  CHECK_FALSE(parse_min_busbw("1@much"));
  for (const std::string bad : {"20", "0us"}) {
    CHECK(check(usual_report(), {"", bad}) == Words{"must be a time such as 20us or 1.5ms@64K, not '" + bad + "'"});
  }
  CHECK(check(usual_report(), {"1@2M", ""}) ==
        Words{"--min-busbw: all_reduce of float sum is not measured at 2 MiB, only at 4 sizes from 8 B to 64 MiB"});
  Report alone = usual_report();
  alone.setting.size = 1;
  CHECK(check(alone, {"1", ""})[0].find("--min-busbw: a group of one has no bus bandwidth") == 0);
}

TEST_CASE("every pair has to reach a threshold, and the worst pair and node are named") {
  Report report = report_of({});
  const auto matrix = [](std::vector<double> six) {
    std::vector<double> all(16);
    std::size_t next = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      for (std::size_t j = i + 1; j < 4; ++j) all[4 * i + j] = all[4 * j + i] = six[next++];
    }
    return all;
  };
  Pairs& pairs = report.summary.pairs.emplace();
  pairs.nodes = {"a", "b", "c", "d"};
  pairs.gbps = matrix({10, 3, 9.5, 2, 9.5, 4});
  pairs.median_us = matrix({5, 9, 5, 20, 5, 10});
  CHECK(check(report, {"2", "20us"}).empty());
  CHECK(check(report, {"9", ""}) == Words{"pair b and c: bandwidth 2 GB/s, 9 GB/s wanted: 77.8 % less; 3 of 6 pairs "
                                          "fell short, worst node c"});
  CHECK(check(report, {"", "8us"}) == Words{"pair b and c: latency 20 us, 8 us wanted: 150 % more; 3 of 6 pairs fell "
                                            "short, worst node c"});
  CHECK(check(report, {"1@1M", ""}) == Words{"--min-busbw: pairs are measured at one size, so name none"});
  CHECK(check(report, {"", "1us@8"}) == Words{"--max-latency: pairs are measured at one size, so name none"});
}
