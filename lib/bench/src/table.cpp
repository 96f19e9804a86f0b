#include "reports.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include "ddrun/base/shared_output.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/bench/options.hpp"
#include "results.hpp"

namespace ddrun::bench {

namespace {

template <class... Values>
std::string format(const char* pattern, Values... values) {
  std::array<char, 512> text{};
  std::snprintf(text.data(), text.size(), pattern, values...);
  return text.data();
}

/// At most seven characters below a second; two decimals if they fit.
std::string microseconds(double value) {
  return format(value < 1000 ? "%.2f" : value < 10000 ? "%.1f" : "%.0f", value);
}

constexpr const char* part_columns = "  %7s  %6s  %6s  %6s";

std::string part(const Measurement& one) {
  if (!one.unsupported_reason.empty()) return format(part_columns, "N/A", "N/A", "N/A", "N/A");
  const std::string wrong = one.wrong ? std::to_string(*one.wrong) : "N/A";
  return format(part_columns, microseconds(one.microseconds).c_str(), two_decimals(one.algbw).c_str(),
                two_decimals(one.busbw).c_str(), wrong.c_str());
}

/// Whether sizes may be rounded to whole elements.
bool rounds(const Options& options) {
  return std::any_of(options.types.begin(), options.types.end(), [&](collectives::DataType type) {
    const std::size_t element = collectives::size_of(type);
    return options.min_bytes % element != 0 || options.step_bytes % element != 0;
  });
}

constexpr std::size_t max_shown = 64;

std::string right(const std::string& text, std::size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

/// `cell` returns the text for two different nodes.
template <class Cell>
std::string matrix(const Pairs& pairs, Cell cell) {
  const int count = static_cast<int>(pairs.nodes.size());
  std::size_t width = 12;
  for (const std::string& name : pairs.nodes) width = std::max(width, name.size());
  std::string text = "#" + right("", width);
  for (const std::string& name : pairs.nodes) text += "  " + right(name, width);
  text += '\n';
  for (int first = 0; first < count; ++first) {
    text += " " + right(pairs.nodes[static_cast<std::size_t>(first)], width);
    for (int second = 0; second < count; ++second) {
      text += "  " + right(first == second ? "-" : cell(pairs.at(first, second)), width);
    }
    text += '\n';
  }
  return text;
}

std::string both(const Pairs& pairs, const Pairs::Worst& worst) {
  return concat(pairs.nodes[static_cast<std::size_t>(worst.first)], " and ",
                pairs.nodes[static_cast<std::size_t>(worst.second)]);
}

}  // namespace

std::string header(const Setting& setting, const Options& options) {
  std::string text =
      concat("# ddrun-allreduce ", DDRUN_ALLREDUCE_VERSION, "  ranks: ", setting.size, "  backend: ", setting.backend,
             setting.note.empty() ? "" : "  (", setting.note, setting.note.empty() ? "" : ")", '\n');
  text += concat("# minBytes ", setting.min_bytes, " maxBytes ", setting.max_bytes,
                 " step: ", options.step_bytes != 0 ? options.step_bytes : options.step_factor,
                 options.step_bytes != 0 ? "(bytes)" : "(factor)", " warmup iters: ", options.warmup, " iters: ");
  text += options.iterations != 0 ? std::to_string(options.iterations) : "auto";
  text += concat(" validation: ", options.checks, "\n#\n");
  if (!setting.details.empty()) text += concat("# backend  : ", setting.details, '\n');
  for (const Fact& fact : setting.facts) text += format("# %-9s: %s\n", fact.name.c_str(), fact.value.c_str());
  if (options.private_buffers) text += "# buffers  : private memory of each rank\n";
  text += "#\n";
  if (rounds(options)) text += "# sizes are rounded down to whole elements\n#\n";
  for (std::size_t rank = 0; rank < setting.members.size(); ++rank) {
    const collectives::Member& member = setting.members[rank];
    text += format("#  Rank %3zu Pid %7d on %s\n", rank, member.pid, member.host.substr(0, 64).c_str());
  }
  return text;
}

std::string heading(collectives::Collective collective) {
  constexpr const char* left_columns = "# %10s  %12s  %8s  %6s  %6s  ";
  std::string text = concat("#\n# ", name_of(collective), '\n');
  const auto both = [](const char* time, const char* algbw, const char* busbw, const char* wrong) {
    const std::string one = format(part_columns, time, algbw, busbw, wrong);
    std::string line = one + " " + one;
    line.erase(line.find_last_not_of(' ') + 1);
    return line + "\n";
  };
  text += format(left_columns, "", "", "", "", "") + format("%22s%9s  %21s\n", "out-of-place", "", "in-place");
  text += format(left_columns, "size", "count", "type", "redop", "root") + both("time", "algbw", "busbw", "#wrong");
  text += format(left_columns, "(B)", "(elements)", "", "", "") + both("(us)", "(GB/s)", "(GB/s)", "");
  return text;
}

std::string line(const Row& row) {
  return format("%12llu  %12llu  %8s  %6s  %6d  ", static_cast<unsigned long long>(row.bytes),
                static_cast<unsigned long long>(row.count), std::string(name_of(row.spec.type)).c_str(),
                reduces(row.spec.collective) ? std::string(name_of(row.spec.op)).c_str() : "none",
                has_root(row.spec.collective) ? row.spec.root : -1) +
         part(row.out_of_place) + " " + part(row.in_place) + "\n";
}

std::string remarks(const Case& spec, const std::vector<Row>& rows, bool no_size) {
  std::string text;
  std::vector<std::string> reasons;
  for (const Row& row : rows) {
    if (!same_case(row.spec, spec)) continue;
    for (const Measurement* one : {&row.out_of_place, &row.in_place}) {
      const std::string& reason = one->unsupported_reason;
      if (reason.empty() || std::find(reasons.begin(), reasons.end(), reason) != reasons.end()) continue;
      reasons.push_back(reason);
      text += concat("# N/A: ", reason, '\n');
    }
  }
  if (no_size) text += concat("# no size has an element of ", name_of(spec.type), " for each rank\n");
  return text;
}

std::string footer(const Summary& summary) {
  std::string text;
  if (!summary.error.empty()) text += concat("# Ended early: ", summary.error, '\n');
  text += concat("# Out of bounds values : ", summary.wrong, summary.wrong == 0 ? " OK\n" : " FAILED\n");
  const bool was_measured = std::any_of(summary.rows.begin(), summary.rows.end(), [](const Row& row) {
    return row.out_of_place.unsupported_reason.empty() || row.in_place.unsupported_reason.empty();
  });
  text += concat("# Avg bus bandwidth    : ", was_measured ? format("%g", summary.mean_busbw) : "N/A", "\n#\n");
  return text;
}

std::string table_of(const Pairs& pairs) {
  std::string text = concat("#\n# pairs of ", pairs.nodes.size(), ": ", pairs.steps, " steps, ", pairs.ranks_per_node,
                            pairs.ranks_per_node == 1 ? " rank" : " ranks", " of each at the same time\n");
  if (pairs.nodes.size() <= max_shown) {
    text += concat("#\n# bandwidth each way (GB/s), ", pairs.bytes, " bytes of each rank\n");
    text += matrix(pairs, [&](std::size_t at) { return two_decimals(pairs.gbps[at]); });
    text += "#\n# latency (us), 8 bytes both ways: minimum/median\n";
    text += matrix(pairs, [&](std::size_t at) {
      return concat(two_decimals(pairs.minimum_us[at]), '/', two_decimals(pairs.median_us[at]));
    });
  } else {
    text += concat("# more than ", max_shown, " are not shown; -J has them all\n");
  }
  text += "#\n";
  if (pairs.slowest.first >= 0) {
    const double least = pairs.gbps[pairs.at(pairs.slowest.first, pairs.slowest.second)];
    const double longest = pairs.median_us[pairs.at(pairs.latest.first, pairs.latest.second)];
    text += concat("# Least bandwidth      : ", both(pairs, pairs.slowest), ", ", two_decimals(least), " GB/s\n");
    text += concat("# Longest latency      : ", both(pairs, pairs.latest), ", ", two_decimals(longest), " us\n");
  }
  if (pairs.worst_node >= 0) {
    text += concat("# Worst of all         : ", pairs.nodes[static_cast<std::size_t>(pairs.worst_node)],
                   ", whose median bandwidth is the least\n");
  }
  return text;
}

void print(int stream, const std::string& lines) {
  if (write_shared(stream, lines)) return;
  const int why = errno;
  print_error(concat("cannot write the table: ", std::generic_category().message(why)));
  std::exit(exit_failed);
}

}  // namespace ddrun::bench
