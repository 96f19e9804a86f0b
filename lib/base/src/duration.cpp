#include "ddrun/base/duration.hpp"

#include <algorithm>
#include <charconv>
#include <climits>
#include <cmath>
#include <cstdio>

#include "ddrun/base/text.hpp"

namespace ddrun {

namespace {

struct Number {
  double value;
  std::size_t length;
};

/// A plain decimal number at the start of `text`; length 0 if there is none. "inf", "nan" and "1e3" are rejected.
Number leading_number(std::string_view text) {
  const std::size_t length = text.find_first_not_of("0123456789.") == std::string_view::npos
                                 ? text.size()
                                 : text.find_first_not_of("0123456789.");
  double value = 0;
  const auto [end, err] = std::from_chars(text.data(), text.data() + length, value);
  if (err != std::errc() || end != text.data() + length) return {0, 0};
  return {value, length};
}

}  // namespace

Result<Milliseconds> parse_duration(std::string_view text) {
  const auto bad = [&] {
    return fail(Errc::invalid_argument,
                concat("'", text, "' is not a time: give seconds (30, 1.5) or a unit (500ms, 20s, 2m, 1h30m)"));
  };
  double total_ms = 0;
  std::string_view rest = text;
  if (rest.empty()) return bad();
  while (!rest.empty()) {
    const Number number = leading_number(rest);
    if (number.length == 0) return bad();
    rest.remove_prefix(number.length);
    const std::size_t unit_length = std::min(rest.find_first_of("0123456789."), rest.size());
    const std::string_view unit = rest.substr(0, unit_length);
    rest.remove_prefix(unit_length);
    if (unit == "ms") total_ms += number.value;
    else if (unit == "s" || (unit.empty() && number.length == text.size())) total_ms += number.value * 1e3;
    else if (unit == "m" || unit == "min") total_ms += number.value * 60e3;
    else if (unit == "h") total_ms += number.value * 3600e3;
    else if (unit == "d") total_ms += number.value * 86400e3;
    else return bad();
  }
  if (total_ms > 1e14) return bad();
  return Milliseconds(std::llround(total_ms));
}

std::string format_duration(std::chrono::nanoseconds duration) {
  const double seconds = std::chrono::duration<double>(duration).count();
  char text[64];
  if (seconds < 0.0995) {
    std::snprintf(text, sizeof text, "%.2g s", seconds);
    if (seconds < 0.001) std::snprintf(text, sizeof text, "%.1f ms", seconds * 1e3);
    else std::snprintf(text, sizeof text, "%.0f ms", seconds * 1e3);
  } else if (seconds < 60) {
    std::snprintf(text, sizeof text, "%.1f s", seconds);
  } else if (seconds < 3600) {
    const long whole = std::lround(seconds);
    std::snprintf(text, sizeof text, "%ld min %ld s", whole / 60, whole % 60);
  } else {
    const long minutes = std::lround(seconds / 60);
    std::snprintf(text, sizeof text, "%ld h %ld min", minutes / 60, minutes % 60);
  }
  return text;
}

std::string duration_text(Milliseconds duration) {
  std::string text = std::to_string(duration.count() / 1000);
  if (const auto rest = duration.count() % 1000; rest != 0) {
    std::string fraction = std::to_string(1000 + rest).substr(1);
    fraction.erase(fraction.find_last_not_of('0') + 1);
    text += "." + fraction;
  }
  return text;
}

int poll_timeout(Deadline deadline) {
  const auto left = std::chrono::ceil<Milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<long long>(left, 0, INT_MAX));
}

Result<std::uint64_t> parse_size(std::string_view text) {
  const auto bad = [&] {
    return fail(Errc::invalid_argument,
                concat("'", text, "' is not a size: give bytes (4096) or a unit (64K, 10M, 1G)"));
  };
  const Number number = leading_number(text);
  if (number.length == 0) return bad();
  std::string_view unit = text.substr(number.length);
  double factor = 1;
  if (!unit.empty()) {
    switch (unit.front()) {
      case 'b':
      case 'B': factor = 1; break;
      case 'k':
      case 'K': factor = 1024.0; break;
      case 'm':
      case 'M': factor = 1024.0 * 1024; break;
      case 'g':
      case 'G': factor = 1024.0 * 1024 * 1024; break;
      case 't':
      case 'T': factor = 1024.0 * 1024 * 1024 * 1024; break;
      default: return bad();
    }
    const std::string_view tail = unit.substr(1);
    const bool plain = unit.front() == 'b' || unit.front() == 'B';
    if (!tail.empty() && (plain || (tail != "B" && tail != "iB" && tail != "b" && tail != "ib"))) return bad();
  }
  const double bytes = number.value * factor;
  if (bytes > 9e18) return bad();
  return static_cast<std::uint64_t>(std::llround(bytes));
}

std::string bytes_text(std::uint64_t bytes) {
  std::string unit;
  for (const char next : {'K', 'M', 'G', 'T'}) {
    if (bytes == 0 || bytes % 1024 != 0) break;
    bytes /= 1024;
    unit = next;
  }
  return concat(bytes, unit);
}

std::string format_size(std::uint64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + (bytes == 1 ? " byte" : " bytes");
  static constexpr const char* units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < sizeof units / sizeof *units) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  std::string number = text;
  if (number.ends_with(".0")) number.resize(number.size() - 2);
  return number + " " + units[unit];
}

Result<long long> parse_integer(std::string_view text, long long low, long long high) {
  const auto value = whole_number<long long>(text);
  if (!value) return fail(Errc::invalid_argument, concat("'", text, "' is not a whole number"));
  if (*value < low || *value > high) {
    return fail(Errc::invalid_argument, concat(text, " is not in the range ", low, " to ", high));
  }
  return *value;
}

}  // namespace ddrun
