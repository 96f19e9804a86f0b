#include "ddrun/lease/program_lines.hpp"

#include <charconv>
#include <utility>

#include "ddrun/base/text.hpp"
#include "ddrun/lease/lease.hpp"

namespace ddrun::lease {

namespace {

/// Of a lease, in milliseconds: so that no sum of times overflows.
constexpr std::uint64_t max_ttl_ms = 10'000'000'000;

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

std::optional<to_program::Line> to_program::parse(std::string_view text) {
  const auto words = split(text, ' ');
  const std::string& what = words[0];
  if (what == "resign" && words.size() == 1) return Resign{};
  if (what == "job" && words.size() > 1) {
    const auto version = positive(words[1]);
    if (version && *version != 1) return Job{*version, {}, {}};
    if (!version || words.size() != 4) return std::nullopt;
    const auto ttl = positive(words[2]);
    auto job = percent_decode(words[3]);
    if (ttl && *ttl <= max_ttl_ms && job) return Job{*version, Milliseconds(*ttl), std::move(*job)};
  }
  if (words.size() != 2) return std::nullopt;
  if (what == "campaign") {
    if (auto address = percent_decode(words[1])) return Campaign{std::move(*address)};
  }
  if (what == "tick") {
    if (const auto number = positive(words[1])) return Tick{*number};
  }
  if (what == "depose") {
    if (const auto term = positive(words[1])) return Depose{*term};
  }
  if (what == "verdict") {
    if (auto verdict = percent_decode(words[1]); verdict && !verdict->empty()) return Verdict{std::move(*verdict)};
  }
  return std::nullopt;
}

}  // namespace ddrun::lease
