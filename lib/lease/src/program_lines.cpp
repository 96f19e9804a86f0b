#include "ddrun/lease/program_lines.hpp"

#include <charconv>
#include <utility>

#include "ddrun/base/text.hpp"

namespace ddrun::lease {

namespace {

constexpr std::string_view hex_digits = "0123456789ABCDEF";
constexpr std::string_view empty_text = "%";

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
}

/// Terms and ticks begin with 1.
std::optional<std::uint64_t> positive(std::string_view word) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || end != word.data() + word.size() || number == 0) return std::nullopt;
  return number;
}

}  // namespace

std::optional<from_program::Line> from_program::parse(std::string_view text) {
  const auto words = split(text, ' ');
  const std::string& what = words[0];
  const auto is = [&](std::string_view name, std::size_t arguments) {
    return what == name && words.size() == arguments + 1;
  };
  if (what == "trouble" && words.size() > 1) return Trouble{plain_line(text.substr(what.size() + 1))};
  if (what == "refused" && words.size() > 1) return Refused{plain_line(text.substr(what.size() + 1))};
  if (is("none", 0)) return None{};
  if (is("resigned", 0)) return Resigned{};
  if (is("recorded", 0)) return Recorded{};
  if (is("mine", 2)) {
    const auto term = positive(words[1]), tick = positive(words[2]);
    if (term && tick) return Mine{*term, *tick};
  }
  if (is("leader", 2)) {
    const auto term = positive(words[1]);
    auto address = percent_decode(words[2]);
    if (term && address) return Other{*term, std::move(*address)};
  }
  if (is("verdict", 1)) {
    if (auto verdict = percent_decode(words[1]); verdict && !verdict->empty()) return Verdict{std::move(*verdict)};
  }
  if (is("done", 1)) {
    if (const auto tick = positive(words[1])) return Done{*tick};
  }
  return std::nullopt;
}

std::string to_program::serialize(const Line& line) {
  struct {
    std::string operator()(const Job& job) const {
      return concat("job 1 ", job.ttl.count(), " ", percent_encode(job.job));
    }
    std::string operator()(const Campaign& campaign) const {
      return concat("campaign ", percent_encode(campaign.address));
    }
    std::string operator()(const Tick& tick) const { return concat("tick ", tick.number); }
    std::string operator()(const Depose& depose) const { return concat("depose ", depose.term); }
    std::string operator()(const Resign& /*resign*/) const { return "resign"; }
    std::string operator()(const Verdict& verdict) const { return concat("verdict ", percent_encode(verdict.text)); }
  } const text;
  return std::visit(text, line);
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
