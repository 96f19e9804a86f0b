#include "report/json_reader.hpp"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <stdexcept>

#include "ddrun/base/text.hpp"

namespace ddrun::allreduce {

namespace {

using nlohmann::json;

/// What `name_of` gave, back; throws if there is nothing of that name.
template <class Value>
Value known(const std::optional<Value>& value, const std::string& name) {
  if (!value) throw std::runtime_error(concat("'", name, "' is not known to this version"));
  return *value;
}

Case case_of(const json& result, const std::string& collective_of_all) {
  const std::string collective = result.value("collective", collective_of_all);
  const std::string type = result.at("type");
  const std::string op = result.at("redop");
  Case what;
  what.collective = known(collectives::collective_named(collective), collective);
  what.type = known(collectives::data_type_named(type), type);
  if (reduces(what.collective)) what.op = known(collectives::reduce_op_named(op), op);
  if (has_root(what.collective)) what.root = result.at("root");
  return what;
}

double number(const json& one, const char* key) {
  const auto found = one.find(key);
  return found == one.end() || found->is_null() ? 0 : found->get<double>();
}

Measurement measurement_of(const json& one) {
  Measurement result;
  const auto lacking = one.find("lacking");
  if (lacking != one.end() && lacking->is_string()) result.lacking = *lacking;
  if (!result.lacking.empty()) return result;
  result.microseconds = one.at("time_us");
  result.algbw = number(one, "algbw_gbps");
  result.busbw = number(one, "busbw_gbps");
  result.median = number(one, "median_us");
  result.p99 = number(one, "p99_us");
  result.minimum = number(one, "min_us");
  result.iterations = one.value("iterations", 0);
  result.samples = one.value("samples", 0);
  const auto wrong = one.find("wrong");
  if (wrong != one.end() && wrong->is_number()) result.wrong = wrong->get<std::uint64_t>();
  return result;
}

Report report_of(const json& text) {
  if (!text.is_object() || text.value("program", "") != "ddrun-allreduce") {
    throw std::runtime_error("it was not written by ddrun-allreduce -J");
  }
  Report report;
  report.setting.backend = text.at("backend");
  report.setting.size = text.at("world_size");
  report.setting.collective = text.value("collective", "");
  report.setting.type = text.value("type", "");
  report.setting.op = text.value("redop", "");
  for (const json& rank : text.at("ranks")) report.setting.members.push_back({rank.at("host"), rank.at("pid")});
  report.summary.error = text.value("error", "");
  report.summary.wrong = text.at("out_of_bounds");
  report.summary.mean_busbw = number(text, "avg_busbw_gbps");
  for (const json& result : text.at("results")) {
    Row row;
    row.what = case_of(result, report.setting.collective);
    row.bytes = result.at("size");
    row.count = result.at("count");
    for (const Placement& placement : kPlacements) {
      row.*placement.of = measurement_of(result.at(std::string(placement.key)));
    }
    report.summary.rows.push_back(std::move(row));
  }
  return report;
}

}  // namespace

Result<Report> read_report(const std::string& option, const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  // A directory opens and cannot be read; of an empty file nothing can be copied, and that is no error.
  if (!file || (!(text << file.rdbuf()) && errno != 0)) {
    return fail_errno(Errc::invalid_argument, concat(option, ": cannot read ", path), errno);
  }
  try {
    Report report = report_of(json::parse(text.str()));
    report.name = path;
    return report;
  } catch (const json::parse_error& error) {
    return fail(Errc::invalid_argument, concat(option, ": ", path, " is no JSON, at byte ", error.byte));
  } catch (const json::exception& error) {
    // "[json.exception.out_of_range.403] key 'backend' not found"
    const std::string why = error.what();
    return fail(Errc::invalid_argument, concat(option, ": ", path, " is no report of ddrun-allreduce -J: ",
                                               why.substr(std::min(why.find("] ") + 2, why.size()))));
  } catch (const std::runtime_error& error) {
    return fail(Errc::invalid_argument, concat(option, ": ", path, ": ", error.what()));
  }
}

}  // namespace ddrun::allreduce
