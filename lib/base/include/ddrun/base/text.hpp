#pragma once

#include <charconv>
#include <concepts>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace ddrun {

/// U+FFFD
inline constexpr std::string_view replacement_character = "\xEF\xBF\xBD";

/// Size in bytes of the UTF-8 character at `at`; 0 if there is none.
[[nodiscard]] std::size_t utf8_size(std::string_view text, std::size_t at);

/// The code of a UTF-8 character.
[[nodiscard]] char32_t decode_utf8(std::string_view character);
/// Appends a character; U+FFFD for a number that is none.
void append_utf8(std::string& text, char32_t code);

/// Length in bytes of the character at `at` if it is not seen itself and reorders the text that is displayed, ends a
/// line there, or makes two texts look the same (U+061C, U+200B, U+200E, U+200F, U+2028 to U+202E, U+2060 to U+206F,
/// U+FEFF, U+FFF9 to U+FFFB, U+E0000 to U+E0FFF); 0 for all others.
[[nodiscard]] std::size_t hidden_character(std::string_view text, std::size_t at);

/// A worker's output line as plain text for ddrun's messages and reports: without escape sequences, control
/// and hidden characters, tabs as four blanks, only the text after the last '\r' (progress bars), '?' for invalid
/// UTF-8. Every quoted line of a worker must pass through it.
[[nodiscard]] std::string plain_line(std::string_view text);

/// Truncates to `columns` characters, plus "..." if text is left out; never splits a UTF-8 sequence.
[[nodiscard]] std::string cut_line(std::string text, std::size_t columns);
/// The same, but first folders of the longest path are left out, from its left, so that what follows it stays:
/// `File ".../modules/module.py", line 17`.
[[nodiscard]] std::string cut_in_path(std::string text, std::size_t columns);

namespace detail {
inline void append(std::string& to, std::string_view text) { to += text; }
inline void append(std::string& to, char c) { to += c; }
template <class T>
requires(std::is_arithmetic_v<T> && !std::same_as<T, char>) void append(std::string& to, T number) {
  to += std::to_string(number);
}
}  // namespace detail

/// Concatenates strings, characters and numbers.
template <class... Parts>
[[nodiscard]] std::string concat(const Parts&... parts) {
  std::string text;
  (detail::append(text, parts), ...);
  return text;
}

[[nodiscard]] std::vector<std::string> split(std::string_view text, char separator);
[[nodiscard]] std::string join(const std::vector<std::string>& parts, std::string_view separator);
[[nodiscard]] std::string_view trim(std::string_view text);
/// Typed input from a file or variable, without a UTF-8 byte order mark and without surrounding blanks and newlines.
[[nodiscard]] std::string_view trim_typed(std::string_view text);

/// The whole text as an integer, without blanks, '+' and prefix; nullopt if it is none or does not fit.
template <std::integral Number>
[[nodiscard]] std::optional<Number> whole_number(std::string_view text, int base = 10) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number, base);
  return error == std::errc() && stop == end ? std::optional(number) : std::nullopt;
}

/// A host name without its domain; an IP address unchanged.
[[nodiscard]] std::string_view short_host_name(std::string_view host);
/// Equal, or one is the other plus a domain: "node1" and "node1.cluster", but not "w.1.x" and "w.2.x".
[[nodiscard]] bool names_same_host(std::string_view a, std::string_view b);

/// Lower-case hexadecimal, two digits per byte.
[[nodiscard]] std::string in_hex(std::span<const std::byte> bytes);

/// Quoted for a POSIX shell where needed.
[[nodiscard]] std::string shell_quote(std::string_view word);

/// Insertions, deletions, replacements and swaps of adjacent letters that make `b` of `a`.
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate nearest to `word` (edit distance), for "did you mean"; empty if none is near.
[[nodiscard]] std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

/// "1 worker", "2 workers".
[[nodiscard]] std::string counted(long long number, std::string_view what);

/// Ranks as ranges: {0,1,2,4} -> "0-2,4". Sorts and removes duplicates.
[[nodiscard]] std::string fold_ranks(std::vector<int> ranks);
/// "rank 3", "ranks 0-2,4".
[[nodiscard]] std::string name_ranks(const std::vector<int>& ranks);

/// What users call a worker. The role is empty in a job of one program.
struct RankName {
  std::string role;
  int rank = 0;
  /// "rank 3", "trainer rank 3".
  [[nodiscard]] std::string text() const;
  bool operator==(const RankName&) const = default;
};
// The same for workers, with the roles in the order in which they first come.
/// "0-2,4", "trainer:0-2,4,router:0".
[[nodiscard]] std::string fold_workers(const std::vector<RankName>& workers);
/// "ranks 0-2,4", "trainer ranks 0-2,4, router rank 0".
[[nodiscard]] std::string name_workers(const std::vector<RankName>& workers);

}  // namespace ddrun
