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

// In the order that it was written in: that of a roofline's passes is part of it.
using json = nlohmann::ordered_json;

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

Roofline roofline_of(const json& one) {
  Roofline roofline;
  roofline.memory = one.value("memory", "host");
  roofline.ranks = one.at("ranks");
  roofline.bytes = one.at("bytes");
  roofline.peak = number(one, "peak_gbps");
  const std::string behind = "_one_gbps";
  for (const auto& [key, value] : one.items()) {
    if (!key.ends_with(behind)) continue;
    const std::string name = key.substr(0, key.size() - behind.size());
    roofline.passes.push_back({name, value.get<double>(), one.at(name + "_all_gbps").get<double>()});
  }
  return roofline;
}

std::vector<double> matrix_of(const json& rows, std::size_t nodes) {
  std::vector<double> values;
  for (const json& row : rows) {
    for (const json& value : row) values.push_back(value.is_null() ? 0 : value.get<double>());
  }
  if (values.size() != nodes * nodes)
    throw std::runtime_error("its matrix of pairs is not as large as its list of nodes");
  return values;
}

Pairs pairs_of(const json& one) {
  const auto worst = [&](const char* key) {
    const json& pair = one.at(key);
    return pair.is_null() ? Pairs::Worst{} : Pairs::Worst{pair.at(0).get<int>(), pair.at(1).get<int>()};
  };
  Pairs pairs;
  pairs.nodes = one.at("nodes").get<std::vector<std::string>>();
  pairs.steps = one.at("steps");
  pairs.ranks_per_node = one.at("ranks_per_node");
  pairs.bytes = one.at("bytes");
  pairs.gbps = matrix_of(one.at("gbps"), pairs.nodes.size());
  pairs.median_us = matrix_of(one.at("median_us"), pairs.nodes.size());
  pairs.minimum_us = matrix_of(one.at("min_us"), pairs.nodes.size());
  pairs.slowest = worst("slowest");
  pairs.latest = worst("latest");
  pairs.worst_node = one.at("worst_node").is_null() ? -1 : one.at("worst_node").get<int>();
  return pairs;
}

Report report_of(const json& text) {
  if (!text.is_object() || text.value("program", "") != "ddrun-allreduce") {
    throw std::runtime_error("it was not written by ddrun-allreduce -J");
  }
  Report report;
  report.setting.backend = text.at("backend");
  report.setting.size = text.at("world_size");
  report.setting.note = text.value("why", "");
  report.setting.details = text.value("details", "");
  report.setting.buffers = text.value("buffers", "");
  report.setting.min_bytes = text.value("min_bytes", std::uint64_t{0});
  report.setting.max_bytes = text.value("max_bytes", std::uint64_t{0});
  if (const auto facts = text.find("facts"); facts != text.end()) {
    for (const auto& [name, value] : facts->items()) report.setting.facts.push_back({name, value.get<std::string>()});
  }
  report.setting.collective = text.value("collective", "");
  report.setting.type = text.value("type", "");
  report.setting.op = text.value("redop", "");
  for (const json& rank : text.at("ranks")) report.setting.members.push_back({rank.at("host"), rank.at("pid")});
  report.summary.error = text.value("error", "");
  report.summary.wrong = text.at("out_of_bounds");
  report.summary.mean_busbw = number(text, "avg_busbw_gbps");
  if (const auto one = text.find("roofline"); one != text.end()) report.summary.roofline = roofline_of(*one);
  if (const auto one = text.find("pairs"); one != text.end()) report.summary.pairs = pairs_of(*one);
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
