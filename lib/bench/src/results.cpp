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

std::string words_of(const Case& what, const std::string& size) {
  if (what.collective == Collective::barrier) return "barrier";
  std::string words = concat(name_of(what.collective), " of ", size, name_of(what.type));
  if (reduces(what.collective)) words += concat(' ', name_of(what.op));
  if (has_root(what.collective)) {
    const bool gathers = what.collective == Collective::reduce || what.collective == Collective::gather;
    words += concat(gathers ? " to rank " : " from rank ", what.root);
  }
  return words;
}

}  // namespace

std::string in_words(const Case& what) { return words_of(what, ""); }

std::string in_words(const Row& row) { return words_of(row.what, size_in_words(row.bytes) + " "); }

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

std::string number_in_words(double value) {
  if (value == 0 || !std::isfinite(value)) return value == 0 ? "0" : "?";
  const int before_point = static_cast<int>(std::floor(std::log10(std::abs(value)))) + 1;
  std::array<char, 400> text{};  // the largest double has 309 digits
  std::snprintf(text.data(), text.size(), "%.*f", std::clamp(3 - before_point, 0, 30), value);
  std::string words = text.data();
  if (words.find('.') != std::string::npos) {
    words.erase(words.find_last_not_of('0') + 1);
    if (words.back() == '.') words.pop_back();
  }
  return words;
}

std::string two_places(double value) {
  std::array<char, 400> text{};
  std::snprintf(text.data(), text.size(), "%.2f", value);
  return text.data();
}

std::string size_in_words(std::uint64_t bytes) {
  static constexpr std::array unit_names{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  std::size_t unit = 0;
  std::uint64_t one = 1;
  while (unit + 1 < unit_names.size() && bytes / one >= 1024) {
    one <<= 10U;
    ++unit;
  }
  // Thousandths that are whole are powers of two of an eighth.
  if (one > 8 && bytes % (one / 8) != 0) return concat(bytes, " B");
  const std::uint64_t thousandths = one > 8 ? bytes / (one / 8) % 8 * 125 : 0;
  std::string words = std::to_string(bytes / one);
  if (thousandths != 0) {
    std::string digits = std::to_string(1000 + thousandths).substr(1);
    digits.erase(digits.find_last_not_of('0') + 1);
    words += "." + digits;
  }
  return concat(words, ' ', unit_names[unit]);
}

std::string percent_in_words(double part) { return number_in_words(part * 100) + " %"; }

std::string time_in_words(double microseconds) {
  if (microseconds < 1) return number_in_words(microseconds * 1e3) + " ns";
  if (microseconds < 1e3) return number_in_words(microseconds) + " us";
  if (microseconds < 1e6) return number_in_words(microseconds / 1e3) + " ms";
  return number_in_words(microseconds / 1e6) + " s";
}

}  // namespace ddrun::bench
