#pragma once

#include <string>
#include <vector>

#include "options/option_table.hpp"
#include "report/thresholds.hpp"

namespace ddrun::allreduce {

/// What is written besides the table, and what the results are judged by. Paths are empty where nothing was asked for.
struct ReportOptions {
  std::string json_file;
  std::string csv_file;
  std::string plot_file;
  std::vector<std::string> with;  ///< reports of other runs for the picture
  std::vector<std::string> from;  ///< reports in place of a run
  Thresholds thresholds;
  std::string compare_file;  ///< a report of before
  double tolerance = 0.1;    ///< part of its speed that may be missing
};

void add_report_options(OptionTable& table, ReportOptions& to);

}  // namespace ddrun::allreduce
