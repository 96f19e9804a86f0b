#include "units.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "ddrun/base/text.hpp"

namespace ddrun::bench {

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

std::string shortest_number(double value) {
  std::array<char, 32> text{};  // 24 are enough for any
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

}  // namespace ddrun::bench
