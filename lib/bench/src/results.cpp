#include "results.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "ddrun/base/text.hpp"

namespace ddrun::bench {

using collectives::Collective;

bool same_case(const Case& one, const Case& other) {
  if (one.collective != other.collective) return false;
  if (one.collective == Collective::barrier) return true;
  return one.type == other.type && (!reduces(one.collective) || one.op == other.op) &&
         (!has_root(one.collective) || one.root == other.root);
}

namespace {

std::string describe_with_size(const Case& spec, const std::string& size) {
  if (spec.collective == Collective::barrier) return "barrier";
  std::string text = concat(name_of(spec.collective), " of ", size, name_of(spec.type));
  if (reduces(spec.collective)) text += concat(' ', name_of(spec.op));
  if (has_root(spec.collective)) {
    const bool gathers = spec.collective == Collective::reduce || spec.collective == Collective::gather;
    text += concat(gathers ? " to rank " : " from rank ", spec.root);
  }
  return text;
}

}  // namespace

std::string describe(const Case& spec) { return describe_with_size(spec, ""); }

std::string describe(const Row& row) { return describe_with_size(row.spec, format_size(row.bytes) + " "); }

Summary summarize(std::vector<Row> rows, std::string error) {
  Summary summary;
  int travelled = 0;
  for (const Row& row : rows) {
    for (const Measurement* one : {&row.out_of_place, &row.in_place}) {
      summary.wrong += one->wrong.value_or(0);
      summary.mean_busbw += one->busbw;
      travelled += one->busbw > 0 ? 1 : 0;
    }
  }
  if (travelled != 0) summary.mean_busbw /= travelled;
  summary.rows = std::move(rows);
  summary.error = std::move(error);
  return summary;
}

std::string format_number(double value) {
  if (value == 0 || !std::isfinite(value)) return value == 0 ? "0" : "?";
  const int before_point = static_cast<int>(std::floor(std::log10(std::abs(value)))) + 1;
  std::array<char, 400> digits{};  // the largest double has 309 digits
  std::snprintf(digits.data(), digits.size(), "%.*f", std::clamp(3 - before_point, 0, 30), value);
  std::string text = digits.data();
  if (text.find('.') != std::string::npos) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  return text;
}

std::string two_decimals(double value) {
  std::array<char, 400> text{};
  std::snprintf(text.data(), text.size(), "%.2f", value);
  return text.data();
}

std::string format_size(std::uint64_t bytes) {
  static constexpr std::array unit_names{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  std::size_t unit = 0;
  std::uint64_t one = 1;
  while (unit + 1 < unit_names.size() && bytes / one >= 1024) {
    one <<= 10U;
    ++unit;
  }
  // Three decimals are exact for multiples of an eighth.
  if (one > 8 && bytes % (one / 8) != 0) return concat(bytes, " B");
  const std::uint64_t thousandths = one > 8 ? bytes / (one / 8) % 8 * 125 : 0;
  std::string text = std::to_string(bytes / one);
  if (thousandths != 0) {
    std::string digits = std::to_string(1000 + thousandths).substr(1);
    digits.erase(digits.find_last_not_of('0') + 1);
    text += "." + digits;
  }
  return concat(text, ' ', unit_names[unit]);
}

std::string format_percent(double part) { return format_number(part * 100) + " %"; }

std::string format_time(double microseconds) {
  if (microseconds < 1) return format_number(microseconds * 1e3) + " ns";
  if (microseconds < 1e3) return format_number(microseconds) + " us";
  if (microseconds < 1e6) return format_number(microseconds / 1e3) + " ms";
  return format_number(microseconds / 1e6) + " s";
}

}  // namespace ddrun::bench
