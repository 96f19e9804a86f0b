#include "reports.hpp"

#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::bench;

TEST_CASE("names in a plot are quoted for gnuplot") {
  Report report;
  report.setting.backend = "shm";
  report.setting.members = {{"';system 'touch h';\n`touch h`\xff", 1}};
  Row& row = report.summary.rows.emplace_back();
  row.bytes = 8;
  row.out_of_place.microseconds = 2;
  const std::string script = plot_script(report, "pngcairo");
  CHECK(script.find("title 'ddrun-allreduce, 1 rank from '';system ''touch h'';?`touch h`?, backend shm'\n") !=
        std::string::npos);
  CHECK(script.find("title 'all_reduce of float sum, out of place'") != std::string::npos);
}
