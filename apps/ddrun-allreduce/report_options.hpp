#pragma once

#include <string>

#include "option_table.hpp"

namespace ddrun::allreduce {

/// What is written besides the table.
struct ReportOptions {
  std::string json_file;
};

void add_report_options(OptionTable& table, ReportOptions& to);

}  // namespace ddrun::allreduce
