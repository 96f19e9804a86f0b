#include "table.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun::allreduce {

namespace {

template <class... Values>
std::string format(const char* pattern, Values... values) {
  std::array<char, 256> text{};
  std::snprintf(text.data(), text.size(), pattern, values...);
  return text.data();
}

/// Seven characters at most as long as it is less than a second; two digits behind the point where there is room.
std::string microseconds(double value) {
  return format(value < 1000 ? "%.2f" : value < 10000 ? "%.1f" : "%.0f", value);
}

std::string part(const Measurement& one) {
  const std::string wrong = one.wrong ? std::to_string(*one.wrong) : "N/A";
  return format("  %7s  %6.2f  %6.2f  %5s", microseconds(one.microseconds).c_str(), one.algbw, one.busbw,
                wrong.c_str());
}

/// Whether a size may be no whole number of elements.
bool rounds(const Options& options) {
  return std::any_of(options.types.begin(), options.types.end(), [&](collectives::DataType type) {
    const std::size_t element = collectives::size_of(type);
    return options.min_bytes % element != 0 || options.step_bytes % element != 0;
  });
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
  if (rounds(options)) text += "# sizes are rounded down to whole elements\n#\n";
  for (std::size_t rank = 0; rank < setting.members.size(); ++rank) {
    const collectives::Member& member = setting.members[rank];
    text += format("#  Rank %3zu Pid %7d on %s\n", rank, member.pid, member.host.substr(0, 64).c_str());
  }
  text += "#\n";
  text += format("# %64s%-30s  %s\n", "", "         out-of-place", "          in-place");
  text += format("# %10s  %12s  %8s  %6s  %6s    %7s  %6s  %6s  %5s    %7s  %6s  %6s  %5s\n", "size", "count", "type",
                 "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong");
  text += format("# %10s  %12s  %8s  %6s  %6s    %7s  %6s  %6s  %6s    %7s  %6s  %6s\n", "(B)", "(elements)", "", "",
                 "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)");
  return text;
}

std::string line(const Row& row) {
  return format("%12llu  %12llu  %8s  %6s  %6d  ", static_cast<unsigned long long>(row.bytes),
                static_cast<unsigned long long>(row.count), std::string(name_of(row.what.type)).c_str(),
                reduces(row.what.collective) ? std::string(name_of(row.what.op)).c_str() : "none",
                has_root(row.what.collective) ? row.what.root : -1) +
         part(row.out_of_place) + " " + part(row.in_place) + "\n";
}

std::string footer(const Summary& summary) {
  std::string text;
  if (!summary.error.empty()) text += concat("# Ended early: ", summary.error, '\n');
  text += concat("# Out of bounds values : ", summary.wrong, summary.wrong == 0 ? " OK\n" : " FAILED\n");
  text += format("# Avg bus bandwidth    : %g\n#\n", summary.mean_busbw);
  return text;
}

void print(const std::string& lines) { write_all(STDOUT_FILENO, lines.data(), lines.size()); }

}  // namespace ddrun::allreduce
