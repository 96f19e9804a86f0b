#include "report/json_report.hpp"

#include <nlohmann/json.hpp>

namespace ddrun::allreduce {

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

ordered_json to_json(const Roofline& roofline) {
  ordered_json all{{"memory", roofline.memory},
                   {"ranks", roofline.ranks},
                   {"bytes", roofline.bytes},
                   {"peak_gbps", roofline.peak > 0 ? ordered_json(roofline.peak) : ordered_json(nullptr)}};
  for (const Roofline::Pass& pass : roofline.passes) {
    all[pass.name + "_one_gbps"] = pass.one;
    all[pass.name + "_all_gbps"] = pass.all;
  }
  return all;
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
  if (summary.roofline) report["roofline"] = to_json(*summary.roofline);
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

}  // namespace ddrun::allreduce
