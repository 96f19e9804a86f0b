#include "reports.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "ddrun/base/text.hpp"
#include "ddrun/bench/run.hpp"
#include "judgement.hpp"

namespace ddrun::bench {

namespace {

/// This process' own stream that is the same file, such as for /dev/stdout; -1: none is.
int own_stream(const struct stat& file) {
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat own {};
    if (fstat(stream, &own) == 0 && own.st_dev == file.st_dev && own.st_ino == file.st_ino) return stream;
  }
  return -1;
}

}  // namespace

Result<OutputFile> OutputFile::open(std::string option, std::string path) {
  OutputFile file;
  const auto refused = [&] {
    return fail_errno(Errc::invalid_argument, concat(option, ": cannot write ", path), errno);
  };
  const bool standard = path == "-";
  file.fd_ = UniqueFd(standard ? fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3)
                               : ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666));
  struct stat info {};
  if (!file.fd_ || fstat(file.fd_.get(), &info) != 0) return refused();
  if (const int stream = own_stream(info); !standard && S_ISREG(info.st_mode) && stream >= 0) {
    // Its own position in the file would be the beginning, where the table is.
    file.fd_ = UniqueFd(fcntl(stream, F_DUPFD_CLOEXEC, 3));
    if (!file.fd_) return refused();
  } else {
    file.replaces_ = !standard && S_ISREG(info.st_mode);
  }
  file.option_ = std::move(option);
  file.path_ = standard ? "standard output" : std::move(path);
  return file;
}

Result<void> OutputFile::write(std::string_view text) {
  if (!write_all(fd_.get(), text.data(), text.size()) ||
      (replaces_ && ftruncate(fd_.get(), static_cast<off_t>(text.size())) != 0)) {
    return fail_errno(Errc::unavailable, concat(option_, ": cannot write ", path_), errno);
  }
  return {};
}

namespace {

Result<void> open_into(OutputFile& file, const std::string& option, const std::string& path) {
  if (path.empty()) return {};
  auto opened = OutputFile::open(option, path);
  if (!opened) return tl::unexpected(opened.error());
  file = std::move(*opened);
  return {};
}

}  // namespace

Result<Reports> Reports::open(const ReportOptions& options) {
  Reports reports;
  reports.options_ = options;
  Result<void> good;
  const auto also = [&good](auto&& next) {
    if (good) good = next();
  };
  if (!options.plot_file.empty()) also(check_gnuplot);
  also([&] { return open_into(reports.json_, "--output_file", options.json_file); });
  also([&] { return open_into(reports.plot_, "--plot", options.plot_file); });
  if (!good) return tl::unexpected(good.error());
  if (options.json_file == "-" && dup2(STDERR_FILENO, STDOUT_FILENO) < 0) {
    return fail_errno(Errc::unavailable, "cannot move the table to standard error", errno);
  }
  return reports;
}

Result<void> Reports::check(const Report& planned) const {
  if (auto good = check_judgeable(options_.thresholds, planned); !good) return good;
  return plot_ ? check_drawable(planned) : Result<void>();
}

std::vector<Shortfall> Reports::judge(const Report& now) const {
  if (!now.summary.error.empty()) return {};
  return shortfalls(options_.thresholds, now.summary);
}

Result<void> Reports::write(const Report& now, const std::vector<Shortfall>& shortfalls) {
  Result<void> result;
  if (json_) result = json_.write(json_of(now, shortfalls));
  if (plot_ && now.summary.error.empty()) {
    const auto drawn =
        terminal_of(options_.plot_file)
            .and_then([&](const std::string& terminal) { return draw(now, terminal, Clock::now() + drawing_time); })
            .and_then([&](const std::string& picture) { return plot_.write(picture); });
    if (result) result = drawn;
  }
  return result;
}

std::string lines_of(const std::vector<Shortfall>& shortfalls) {
  std::string text;
  for (const Shortfall& shortfall : shortfalls) text += concat("# Fell short: ", shortfall.words, '\n');
  return text;
}

void say_worst(const std::vector<Shortfall>& shortfalls) {
  if (shortfalls.empty()) return;
  const auto worst =
      std::min_element(shortfalls.begin(), shortfalls.end(),
                       [](const Shortfall& one, const Shortfall& other) { return one.ratio < other.ratio; });
  const std::size_t others = shortfalls.size() - 1;
  say_error(
      concat("too slow: ", worst->words, others == 0 ? std::string() : concat(" (", others, " more fell short)")));
}

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

}  // namespace ddrun::bench
