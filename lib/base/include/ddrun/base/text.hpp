#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace ddrun {

/// A line that a worker wrote, fit for a message or a report of ours: without escape sequences and control characters
/// (nothing of it can move the cursor, change a title or a colour), tabs as four blanks, and of what a progress bar
/// wrote over, the last state. Bytes that are not UTF-8 become '?'. Whatever workers wrote goes through here before it
/// is said.
[[nodiscard]] std::string plain_line(std::string_view text);

/// At most `columns` characters of it, with "..." behind if some are left out; never half a UTF-8 sequence.
[[nodiscard]] std::string cut_line(std::string text, std::size_t columns);

namespace detail {
inline void append(std::string& to, std::string_view text) { to += text; }
inline void append(std::string& to, char c) { to += c; }
template <class T>
requires(std::is_arithmetic_v<T> && !std::same_as<T, char>) void append(std::string& to, T number) {
  to += std::to_string(number);
}
}  // namespace detail

/// Texts, characters and numbers one after the other.
template <class... Parts>
[[nodiscard]] std::string concat(const Parts&... parts) {
  std::string text;
  (detail::append(text, parts), ...);
  return text;
}

[[nodiscard]] std::vector<std::string> split(std::string_view text, char separator);
[[nodiscard]] std::string join(const std::vector<std::string>& parts, std::string_view separator);
[[nodiscard]] std::string_view trim(std::string_view text);
/// What a person has put into a file or a variable, as editors, `echo` and Windows leave it: without a UTF-8 byte order
/// mark in front and without blanks and line ends around it.
[[nodiscard]] std::string_view trim_typed(std::string_view text);

/// A host's name without its domain; an IP address, or what could be one, whole: its first part names no host.
[[nodiscard]] std::string_view short_host_name(std::string_view host);
/// Equal, or one is the other with a domain behind it: "node1" and "node1.cluster", but not "w.1.x" and "w.2.x".
[[nodiscard]] bool names_same_host(std::string_view a, std::string_view b);

/// Two hexadecimal digits for each byte, small letters.
[[nodiscard]] std::string in_hex(std::span<const std::byte> bytes);

/// As a POSIX shell would need it typed; plain words stay plain.
[[nodiscard]] std::string shell_quote(std::string_view word);

/// Of `candidates`, the one that `word` was most likely meant to be; empty if none is near.
[[nodiscard]] std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

/// "1 worker", "2 workers".
[[nodiscard]] std::string counted(long long number, std::string_view what);

/// Ranks folded for people: {0,1,2,4} -> "0-2,4". Needs no order, keeps no doubles.
[[nodiscard]] std::string fold_ranks(std::vector<int> ranks);
/// "rank 3", "ranks 0-2,4".
[[nodiscard]] std::string name_ranks(const std::vector<int>& ranks);

}  // namespace ddrun
