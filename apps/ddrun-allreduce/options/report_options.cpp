#include "options/report_options.hpp"

#include "ddrun/base/text.hpp"
#include "options/option_readers.hpp"
#include "report/comparison.hpp"
#include "report/plot.hpp"

namespace ddrun::allreduce {

namespace {

Result<void> refuse(std::string why) { return fail(Errc::invalid_argument, std::move(why)); }

OptionTable::Read picture_into(std::string& to) {
  return [&to](const std::string& text) -> Result<void> {
    if (const auto format = picture_format(text); !format) return tl::unexpected(format.error());
    to = text;
    return {};
  };
}

/// Paths with commas between them.
OptionTable::Read paths_into(std::vector<std::string>& to) {
  return [&to](const std::string& text) -> Result<void> {
    to = split(text, ',');
    for (const std::string& path : to) {
      if (path.empty()) return refuse("must be files with commas between them");
    }
    return {};
  };
}

/// What `parse` makes of the text.
template <class Value>
OptionTable::Read parsed_into(Value& to, Result<Value> (*parse)(const std::string& text)) {
  return [&to, parse](const std::string& text) -> Result<void> {
    auto value = parse(text);
    if (!value) return tl::unexpected(value.error());
    to = std::move(*value);
    return {};
  };
}

Result<void> judge_from(const ReportOptions& options) {
  const bool judges = options.thresholds.any() || !options.compare_file.empty();
  if (!options.json_file.empty()) return refuse("--output_file: what --from reads is such a file already");
  if (!judges && options.csv_file.empty() && options.plot_file.empty()) {
    return refuse("--from: say what for: --plot, --csv, --compare, --min-busbw or --max-latency");
  }
  if (options.from.size() > 1 && (judges || !options.csv_file.empty())) {
    return refuse(concat("--from: several files are for --plot alone; --csv, --compare and thresholds are of one, not ",
                         options.from.size()));
  }
  return {};
}

Result<void> judge(const ReportOptions& options, bool tolerance_given) {
  if (!options.with.empty() && options.plot_file.empty()) return refuse("--with: is for --plot");
  if (tolerance_given && options.compare_file.empty()) return refuse("--tolerance: is for --compare");
  std::vector<std::string> files;
  for (const std::string& file : {options.json_file, options.csv_file, options.plot_file}) {
    for (const std::string& other : files) {
      if (!file.empty() && file == other) return refuse(concat(file, ": two reports cannot be written to one file"));
    }
    files.push_back(file);
  }
  return options.from.empty() ? Result<void>() : judge_from(options);
}

}  // namespace

void add_report_options(OptionTable& table, ReportOptions& to) {
  table.group("Reports (FILE may be - for standard output)");
  table.add("-J,--output_file,--json", "FILE", "also write the results there", text_into(to.json_file));
  table.add("--csv", "FILE", "the same, a line per measurement", text_into(to.csv_file));
  table.add("--plot", "FILE", "draw them: a name in .svg or .png (gnuplot)", picture_into(to.plot_file));
  table.add("--with", "FILE,...", "other reports of -J in the same picture", paths_into(to.with));
  table.add("--from", "FILE,...", "reports of -J in place of a run: no launcher", paths_into(to.from));
  table.group("Judging (exit status 3 if it falls short)");
  table.add("--min-busbw", "GB/s[@SIZE]", "needed at the largest size, or at SIZE",
            parsed_into(to.thresholds.min_busbw, parse_min_busbw));
  table.add("--max-latency", "TIME[@SIZE]", "allowed at the smallest size, or at SIZE",
            parsed_into(to.thresholds.max_latency, parse_max_latency));
  table.add("--compare", "FILE", "a report of -J that this run has to reach", text_into(to.compare_file));
  auto tolerance_given = std::make_shared<bool>(false);
  table.add("--tolerance", "PERCENT", "how much slower is allowed (10%)",
            [&to, tolerance_given](const std::string& text) {
              *tolerance_given = true;
              return parsed_into(to.tolerance, parse_tolerance)(text);
            });
  table.rule([&to, tolerance_given] { return judge(to, *tolerance_given); });
}

}  // namespace ddrun::allreduce
