#include "report_options.hpp"

#include "option_readers.hpp"

namespace ddrun::allreduce {

void add_report_options(OptionTable& table, ReportOptions& to) {
  table.group("Reports");
  table.add("-J,--output_file,--json", "FILE", "also write the results there", text_into(to.json_file));
}

}  // namespace ddrun::allreduce
