#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "ddrun/base/result.hpp"

namespace ddrun {

using Clock = std::chrono::steady_clock;
/// Deadlines are passed as points in time, so that retries do not add up.
using Deadline = Clock::time_point;
using Milliseconds = std::chrono::milliseconds;

/// Parses "30" (seconds), "1.5", "500ms", "20s", "2m", "1h", "1h30m"; never negative. Fails with `invalid_argument`;
/// the message lists the accepted forms.
[[nodiscard]] Result<Milliseconds> parse_duration(std::string_view text);

/// The shortest text that parse_duration() accepts: "30", "1.5", "0.25".
[[nodiscard]] std::string duration_text(Milliseconds duration);

/// For messages: "0.35 s", "12.3 s", "2 min 5 s", "3 h 2 min".
[[nodiscard]] std::string format_duration(std::chrono::nanoseconds duration);

/// The timeout for poll(2): milliseconds until the deadline, rounded up to avoid an early wake-up; 0 once it has
/// passed.
[[nodiscard]] int poll_timeout(Deadline deadline);

/// "4096", "64K", "10M", "1G", "64KiB", "10MB"; K, M, G, T are powers of 1024, with or without "B" or "iB".
[[nodiscard]] Result<std::uint64_t> parse_size(std::string_view text);

/// The shortest text that parse_size() accepts: "4G", "64K", "100".
[[nodiscard]] std::string bytes_text(std::uint64_t bytes);

/// For messages: "512 bytes", "1.5 MiB", "4 GiB".
[[nodiscard]] std::string format_size(std::uint64_t bytes);

/// Parses the whole text as a decimal integer in [low, high]; no blanks, no '+', no hexadecimal.
[[nodiscard]] Result<long long> parse_integer(std::string_view text, long long low, long long high);

}  // namespace ddrun
