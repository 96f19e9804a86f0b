#pragma once

#include <cstdint>
#include <string>

namespace ddrun::bench {

// Numbers for people, and one for programs.

/// "8 B", "1 KiB", "1.5 MiB", "1003 B": exact if three digits behind the point are enough, else bytes.
[[nodiscard]] std::string size_in_words(std::uint64_t bytes);

/// Three digits that count, without an exponent: "0.00312", "3.2", "81", "12346".
[[nodiscard]] std::string number_in_words(double value);

/// "12.30".
[[nodiscard]] std::string two_places(double value);

/// Of 0.125: "12.5 %".
[[nodiscard]] std::string percent_in_words(double part);

/// "850 ns", "12.3 us", "1.5 ms", "2 s".
[[nodiscard]] std::string time_in_words(double microseconds);

/// The shortest text that programs read as the same number: "0.1", "1e+20".
[[nodiscard]] std::string shortest_number(double value);

}  // namespace ddrun::bench
