#include "program_lines.hpp"

#include <charconv>
#include <utility>

#include "ddrun/base/text.hpp"
#include "words.hpp"

namespace ddrun::lease::line {

namespace {

/// Terms and ticks begin with 1.
std::optional<std::uint64_t> positive(std::string_view word) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || end != word.data() + word.size() || number == 0) return std::nullopt;
  return number;
}

}  // namespace

std::optional<Line> parse(std::string_view text) {
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
    auto address = from_word(words[2]);
    if (term && address) return Other{*term, std::move(*address)};
  }
  if (is("verdict", 1)) {
    if (auto verdict = from_word(words[1]); verdict && !verdict->empty()) return Verdict{std::move(*verdict)};
  }
  if (is("done", 1)) {
    if (const auto tick = positive(words[1])) return Done{*tick};
  }
  return std::nullopt;
}

}  // namespace ddrun::lease::line
