#include "ddrun/lease/lease.hpp"

#include "ddrun/base/text.hpp"

namespace ddrun::lease {

namespace {

constexpr std::size_t max_job_bytes = 512;

constexpr std::string_view hex_digits = "0123456789ABCDEF";
constexpr std::string_view empty_text = "%";

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
}

}  // namespace

Result<void> check_options(const LeaseOptions& options) {
  if (options.job.empty() || options.job.size() > max_job_bytes) {
    return fail(Errc::invalid_argument, concat("a job's id has 1 to ", max_job_bytes, " bytes"));
  }
  if (options.ttl < min_ttl || options.ttl.count() % 1000 != 0) {
    return fail(Errc::invalid_argument,
                concat("a lease's time to live is ", duration_text(min_ttl),
                       " seconds or more, and whole seconds, not ", duration_text(options.ttl)));
  }
  return {};
}

std::string percent_encode(std::string_view text) {
  if (text.empty()) return std::string(empty_text);
  std::string word;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (is_plain(c)) word += c;
    else word += {'%', hex_digits[byte / 16], hex_digits[byte % 16]};
  }
  return word;
}

std::optional<std::string> percent_decode(std::string_view word) {
  if (word == empty_text) return std::string();
  std::string text;
  for (std::size_t i = 0; i < word.size(); ++i) {
    if (is_plain(word[i])) {
      text += word[i];
      continue;
    }
    if (word[i] != '%') return std::nullopt;
    if (i + 2 >= word.size()) return std::nullopt;
    const auto high = hex_digits.find(word[i + 1]), low = hex_digits.find(word[i + 2]);
    if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
    text += static_cast<char>(high * 16 + low);
    i += 2;
  }
  // Rejects escaped plain characters and lower-case digits.
  if (percent_encode(text) != word) return std::nullopt;
  return text;
}

}  // namespace ddrun::lease
