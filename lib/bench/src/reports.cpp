#include "reports.hpp"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "ddrun/base/shared_output.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::bench {

Result<void> OutputFile::open(std::string option, std::string path) {
  option_ = std::move(option);
  path_ = std::move(path);
  if (path_.empty() || is_standard_output()) return {};
  errno = 0;
  file_.open(path_, std::ios::binary | std::ios::app);
  if (file_) return {};
  return fail_errno(Errc::invalid_argument, concat(option_, ": cannot write ", path_), errno);
}

Result<void> OutputFile::write(const std::string& text) {
  errno = 0;
  bool good = false;
  if (is_standard_output()) {
    good = write_shared(STDOUT_FILENO, text);
  } else {
    std::error_code error;
    if (std::filesystem::is_regular_file(path_, error)) std::filesystem::resize_file(path_, 0, error);
    good = static_cast<bool>(file_ << text << std::flush);
  }
  if (good) return {};
  return fail_errno(Errc::unavailable, concat(option_, ": cannot write ", path_), errno);
}

Result<Reports> Reports::open(const ReportOptions& options) {
  Reports reports;
  reports.options_ = options;
  auto good = options.plot_file.empty() ? Result<void>() : check_gnuplot();
  if (good) good = reports.json_.open("--output_file", options.json_file);
  if (good) good = reports.plot_.open("--plot", options.plot_file);
  TRY(good);
  return reports;
}

Result<void> Reports::check(const Report& planned) const {
  TRY(check_thresholds(options_.thresholds, planned));
  return plot_ ? check_drawable(planned) : Result<void>();
}

std::vector<Violation> Reports::violations_of(const Report& now) const {
  if (!now.summary.error.empty()) return {};
  return threshold_failures(options_.thresholds, now.summary);
}

Result<void> Reports::write(const Report& now, const std::vector<Violation>& violations) {
  Result<void> result;
  if (json_) result = json_.write(json_of(now, violations));
  if (plot_ && now.summary.error.empty()) {
    const auto drawn =
        terminal_of(options_.plot_file)
            .and_then([&](const std::string& terminal) { return draw(now, terminal, Clock::now() + drawing_time); })
            .and_then([&](const std::string& picture) { return plot_.write(picture); });
    if (result) result = drawn;
  }
  return result;
}

std::string lines_of(const std::vector<Violation>& violations) {
  std::string text;
  for (const Violation& violation : violations) text += concat("# Fell short: ", violation.text, '\n');
  return text;
}

void print_worst_violation(const std::vector<Violation>& violations) {
  if (violations.empty()) return;
  const auto worst = std::ranges::min_element(violations, {}, &Violation::ratio);
  const std::size_t others = violations.size() - 1;
  print_error(
      concat("too slow: ", worst->text, others == 0 ? std::string() : concat(" (", others, " more fell short)")));
}

namespace {

using nlohmann::ordered_json;

/// The same keys for all rows; null if not measured.
ordered_json to_json(const Measurement& one) {
  const bool ran = one.unsupported_reason.empty();
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
          {"lacking", ran ? ordered_json(nullptr) : ordered_json(one.unsupported_reason)}};
}

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

std::string json_of(const Report& run, const std::vector<Violation>& violations) {
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
                                 {"collective", name_of(row.spec.collective)},
                                 {"type", name_of(row.spec.type)},
                                 {"redop", reduces(row.spec.collective) ? name_of(row.spec.op) : "none"},
                                 {"root", has_root(row.spec.collective) ? row.spec.root : -1},
                                 {"out_of_place", to_json(row.out_of_place)},
                                 {"in_place", to_json(row.in_place)}});
  }
  if (summary.pairs) report["pairs"] = to_json(*summary.pairs);
  report["out_of_bounds"] = summary.wrong;
  report["avg_busbw_gbps"] = summary.mean_busbw;
  report["ok"] = summary.wrong == 0 && summary.error.empty();
  if (!summary.error.empty()) report["error"] = summary.error;
  report["fell_short"] = ordered_json::array();
  for (const Violation& violation : violations) report["fell_short"].push_back(violation.text);
  // A host name may contain any bytes.
  return report.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace ddrun::bench
