#include "reports.hpp"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "ddrun/base/text.hpp"
#include "results.hpp"

namespace ddrun::bench {

namespace {

using nlohmann::ordered_json;

/// The same keys whether it was measured or not; those without a value are null.
ordered_json to_json(const Measurement& one) {
  const bool ran = one.lacking.empty();
  const auto value = [ran](auto number) { return ran ? ordered_json(number) : ordered_json(nullptr); };
  return {{"time_us", value(one.microseconds)},
          {"algbw_gbps", value(one.algbw)},
          {"busbw_gbps", value(one.busbw)},
          {"wrong", one.wrong ? ordered_json(*one.wrong) : ordered_json(nullptr)},
          {"iterations", value(one.iterations)},
          {"median_us", value(one.median)},
          {"p99_us", value(one.p99)},
          {"min_us", value(one.minimum)},
          {"samples", value(one.samples)},
          {"lacking", ran ? ordered_json(nullptr) : ordered_json(one.lacking)}};
}

/// A list of rows; null where a node would meet itself.
ordered_json matrix_of(const Pairs& pairs, const std::vector<double>& values) {
  const int count = static_cast<int>(pairs.nodes.size());
  ordered_json matrix = ordered_json::array();
  for (int first = 0; first < count; ++first) {
    ordered_json row = ordered_json::array();
    for (int second = 0; second < count; ++second) {
      row.push_back(first == second ? ordered_json(nullptr) : ordered_json(values[pairs.at(first, second)]));
    }
    matrix.push_back(std::move(row));
  }
  return matrix;
}

ordered_json to_json(const Pairs& pairs) {
  const auto pair = [](const Pairs::Worst& worst) {
    return worst.first < 0 ? ordered_json(nullptr) : ordered_json{worst.first, worst.second};
  };
  return {{"nodes", pairs.nodes},
          {"steps", pairs.steps},
          {"ranks_per_node", pairs.ranks_per_node},
          {"bytes", pairs.bytes},
          {"gbps", matrix_of(pairs, pairs.gbps)},
          {"median_us", matrix_of(pairs, pairs.median_us)},
          {"min_us", matrix_of(pairs, pairs.minimum_us)},
          {"slowest", pair(pairs.slowest)},
          {"latest", pair(pairs.latest)},
          {"worst_node", pairs.worst_node < 0 ? ordered_json(nullptr) : ordered_json(pairs.worst_node)}};
}

}  // namespace

std::string json_of(const Report& run, const std::vector<Shortfall>& shortfalls) {
  const Setting& setting = run.setting;
  const Summary& summary = run.summary;
  ordered_json report{{"program", "ddrun-allreduce"},
                      {"version", DDRUN_ALLREDUCE_VERSION},
                      {"collective", setting.collective},
                      {"type", setting.type},
                      {"redop", setting.op},
                      {"backend", setting.backend},
                      {"why", setting.note},
                      {"details", setting.details},
                      {"buffers", setting.buffers},
                      {"world_size", setting.size},
                      {"min_bytes", setting.min_bytes},
                      {"max_bytes", setting.max_bytes}};
  report["facts"] = ordered_json::object();
  for (const Fact& fact : setting.facts) report["facts"][fact.name] = fact.value;
  report["ranks"] = ordered_json::array();
  for (std::size_t rank = 0; rank < setting.members.size(); ++rank) {
    report["ranks"].push_back(
        {{"rank", rank}, {"host", setting.members[rank].host}, {"pid", setting.members[rank].pid}});
  }
  report["results"] = ordered_json::array();
  for (const Row& row : summary.rows) {
    report["results"].push_back({{"size", row.bytes},
                                 {"count", row.count},
                                 {"collective", name_of(row.what.collective)},
                                 {"type", name_of(row.what.type)},
                                 {"redop", reduces(row.what.collective) ? name_of(row.what.op) : "none"},
                                 {"root", has_root(row.what.collective) ? row.what.root : -1},
                                 {"out_of_place", to_json(row.out_of_place)},
                                 {"in_place", to_json(row.in_place)}});
  }
  if (summary.pairs) report["pairs"] = to_json(*summary.pairs);
  report["out_of_bounds"] = summary.wrong;
  report["avg_busbw_gbps"] = summary.mean_busbw;
  report["ok"] = summary.wrong == 0 && summary.error.empty();
  if (!summary.error.empty()) report["error"] = summary.error;
  report["fell_short"] = ordered_json::array();
  for (const Shortfall& shortfall : shortfalls) report["fell_short"].push_back(shortfall.words);
  // A host name may be any bytes.
  return report.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

namespace {

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
  if (const auto one = text.find("pairs"); one != text.end()) report.summary.pairs = pairs_of(*one);
  for (const json& result : text.at("results")) {
    Row row;
    row.what = case_of(result, report.setting.collective);
    row.bytes = result.at("size");
    row.count = result.at("count");
    for (const Placement& placement : placements) {
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

namespace {

constexpr const char* csv_names =
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
  std::string text = csv_names;
  for (const Row& row : report.summary.rows) {
    for (const Placement& placement : placements) text += line_of(report.setting, row, placement);
  }
  return text;
}

}  // namespace ddrun::bench
