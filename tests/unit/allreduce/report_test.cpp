// What -J writes is what --from and --compare read.

#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"
#include "reports.hpp"

using namespace ddrun;
using namespace ddrun::bench;

namespace {

Row row(collectives::Collective collective, std::uint64_t bytes) {
  Row one;
  one.what = {collective, collectives::DataType::bfloat16, collectives::ReduceOp::max, 1};
  one.bytes = bytes;
  one.count = bytes / 2;
  one.out_of_place = {20, 3.5, 3.25, 9.75, 3.125, 19, 12.5, 6.25, 0, ""};
  one.in_place.lacking = "the test has none";
  return one;
}

Report full() {
  Report report;
  Setting& setting = report.setting;
  setting = {3, "nccl", "because", "NCCL 2.28.9", "private", {}, {{"machine", "m"}, {"date", "today"}},
             8, 64,     "all",     "bfloat16",    "max"};
  setting.members = {{"a", 1}, {"b", 2}, {"c", 3}};
  Summary& summary = report.summary;
  summary.pairs = Pairs{{"a", "b", "c"},
                        3,
                        1,
                        64,
                        {0, 1, 2, 1, 0, 3, 2, 3, 0},
                        {0, 4, 5, 4, 0, 6, 5, 6, 0},
                        {0, 3, 4, 3, 0, 5, 4, 5, 0},
                        {0, 1},
                        {1, 2},
                        0,
                        0};
  summary.rows = {row(collectives::Collective::reduce, 64), row(collectives::Collective::barrier, 0),
                  row(collectives::Collective::all_gather, 192)};
  summary.mean_busbw = 6.25;
  return report;
}

void check_comes_back(const Report& report) {
  const test::TemporaryDirectory directory;
  const std::string text = json_of(report, {});
  const std::string path = directory.file("report.json", text);
  const auto back = read_report("--from", path);
  REQUIRE(back);
  CHECK(back->name == path);
  CHECK(json_of(*back, {}) == text);
}

}  // namespace

TEST_CASE("a report comes back as it was, with pairs") {
  const Report report = full();
  check_comes_back(report);
  Report other = report;
  other.summary.pairs->worst_node = -1;
  other.summary.pairs->slowest = {};
  other.summary.error = "rank 1 is gone";
  other.summary.wrong = 7;
  check_comes_back(other);
  other.summary.pairs.reset();
  other.summary.rows.clear();
  check_comes_back(other);
}

TEST_CASE("a matrix that is not as large as its nodes is refused") {
  const test::TemporaryDirectory directory;
  Report report = full();
  report.summary.pairs->nodes.push_back("d");
  for (auto* values :
       {&report.summary.pairs->gbps, &report.summary.pairs->median_us, &report.summary.pairs->minimum_us}) {
    values->resize(16);
  }
  std::string text = json_of(report, {});
  text.replace(text.find("\"d\""), 3, "\"d\",\"e\"");
  const auto read = read_report("--compare", directory.file("report.json", text));
  REQUIRE_FALSE(read);
  CHECK(read.error().code == Errc::invalid_argument);
  CHECK(read.error().message.find("its matrix of pairs is not as large as its list of nodes") != std::string::npos);
}
