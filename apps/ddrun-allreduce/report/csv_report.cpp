#include "report/csv_report.hpp"

#include <vector>

#include "ddrun/base/text.hpp"
#include "report/units.hpp"

namespace ddrun::allreduce {

namespace {

constexpr const char* kNames =
    "collective,type,redop,root,placement,size,count,world_size,backend,time_us,algbw_gbps,busbw_gbps,wrong,iterations,"
    "median_us,p99_us,min_us,samples,lacking\n";

std::string in_quotes(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string(2, c) : std::string(1, c);
  return quoted + "\"";
}

std::string line_of(const Setting& setting, const Row& row, const Placement& placement) {
  const Case& what = row.what;
  const Measurement& one = row.*placement.of;
  std::vector<std::string> fields{std::string(name_of(what.collective)),
                                  std::string(name_of(what.type)),
                                  std::string(reduces(what.collective) ? name_of(what.op) : "none"),
                                  std::to_string(has_root(what.collective) ? what.root : -1),
                                  std::string(placement.key),
                                  std::to_string(row.bytes),
                                  std::to_string(row.count),
                                  std::to_string(setting.size),
                                  in_quotes(setting.backend)};
  if (one.lacking.empty()) {
    for (const double value : {one.microseconds, one.algbw, one.busbw}) fields.push_back(shortest_number(value));
    fields.push_back(one.wrong ? std::to_string(*one.wrong) : "");
    fields.push_back(std::to_string(one.iterations));
    for (const double value : {one.median, one.p99, one.minimum}) fields.push_back(shortest_number(value));
    fields.push_back(std::to_string(one.samples));
  } else {
    fields.insert(fields.end(), 9, "");
  }
  fields.push_back(in_quotes(one.lacking));
  return join(fields, ",") + "\n";
}

}  // namespace

std::string csv_of(const Report& report) {
  std::string text = kNames;
  for (const Row& row : report.summary.rows) {
    for (const Placement& placement : kPlacements) text += line_of(report.setting, row, placement);
  }
  return text;
}

}  // namespace ddrun::allreduce
