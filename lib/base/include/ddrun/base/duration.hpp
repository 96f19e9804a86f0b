#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "ddrun/base/result.hpp"

namespace ddrun {

using Clock = std::chrono::steady_clock;
/// Deadlines travel inwards as points in time, so that retries cannot add up.
using Deadline = Clock::time_point;
using Milliseconds = std::chrono::milliseconds;

/// "30" (seconds), "1.5", "500ms", "20s", "2m", "1h", "1h30m". Never negative.
/// Fails with `invalid_argument` and says what is allowed.
[[nodiscard]] Result<Milliseconds> parse_duration(std::string_view text);

/// The shortest text that parse_duration() takes back: "30", "1.5", "0.25".
[[nodiscard]] std::string duration_text(Milliseconds duration);

/// "0.35 s", "12.3 s", "2 min 5 s", "3 h 2 min": for people.
[[nodiscard]] std::string format_duration(std::chrono::nanoseconds duration);

/// What poll(2) takes: whole milliseconds until the deadline, rounded up so that no thread wakes too early for nothing;
/// 0 once it has passed.
[[nodiscard]] int poll_timeout(Deadline deadline);

/// "4096", "64K", "10M", "1G", "64KiB", "10MB"; K, M, G, T are powers of 1024, with or without "B" or "iB".
[[nodiscard]] Result<std::uint64_t> parse_size(std::string_view text);

/// The shortest text that parse_size() takes back: "4G", "64K", "100".
[[nodiscard]] std::string bytes_text(std::uint64_t bytes);

/// "512 bytes", "1.5 MiB", "4 GiB": for people.
[[nodiscard]] std::string format_size(std::uint64_t bytes);

/// The whole text as a decimal integer in [low, high]; no blanks, no sign but '-', no hexadecimal.
[[nodiscard]] Result<long long> parse_integer(std::string_view text, long long low, long long high);

}  // namespace ddrun
