#include "line_prefix.hpp"

#include <array>
#include <ctime>
#include <optional>

#include "ddrun/base/text.hpp"

namespace ddrun::logs {

namespace {

constexpr std::string_view known_macros = "${role_name}, ${local_rank}, ${rank}, ${hostname}";

bool starts_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool in_name(char c) { return starts_name(c) || (c >= '0' && c <= '9'); }

std::optional<std::string> value_of(std::string_view macro, const PrefixFacts& facts) {
  if (macro == "role_name") return std::string(facts.role);
  if (macro == "local_rank") return std::to_string(facts.local_rank);
  if (macro == "rank") return std::to_string(facts.rank);
  if (macro == "hostname") return std::string(facts.hostname);
  return std::nullopt;
}

/// As Python's string.Template: ${name}, $name, and $$ for a dollar. Any other dollar stays.
Result<std::string> expand(std::string_view text, const PrefixFacts& facts) {
  std::string result;
  std::size_t at = 0;
  while (at < text.size()) {
    if (text[at] != '$' || at + 1 == text.size()) {
      result += text[at++];
      continue;
    }
    const char next = text[at + 1];
    if (next == '$') {
      result += '$';
      at += 2;
      continue;
    }
    const bool braced = next == '{';
    std::size_t end = at + (braced ? 2 : 1);
    const std::size_t begin = end;
    while (end < text.size() && in_name(text[end])) ++end;
    const std::string_view name = text.substr(begin, end - begin);
    const bool closed = !braced || (end < text.size() && text[end] == '}');
    if (!closed || (braced && name.empty())) {
      return fail(Errc::invalid_argument, concat("--log-line-prefix-template: '", text.substr(at),
                                                 "' is not a name in braces; known are ", known_macros));
    }
    if (name.empty() || !starts_name(name.front())) {
      result += text[at++];
      continue;
    }
    const std::optional<std::string> value = value_of(name, facts);
    if (!value) {
      std::string message = concat("--log-line-prefix-template: nothing is called '", name, "'");
      const std::string near = nearest(name, {"role_name", "local_rank", "rank", "hostname"});
      message += near.empty() ? std::string("; known are ") : concat("; did you mean ${", near, "}? Known are ");
      return fail(Errc::invalid_argument, concat(message, known_macros));
    }
    result += *value;
    at = end + (braced ? 1 : 0);
  }
  return result;
}

}  // namespace

Result<void> check_template(std::string_view text) {
  TRY(expand(text, PrefixFacts{}));
  return {};
}

std::string line_prefix(const LogSpec& log, const PrefixFacts& facts) {
  if (!log.line_prefix_template.empty()) return expand(log.line_prefix_template, facts).value_or("");
  const std::string role = facts.with_role ? concat(facts.role, ':') : "";
  switch (log.label) {
    case Label::none: return "";
    case Label::rank: return concat('[', role, facts.rank, "] ");
    case Label::local: return concat('[', role, "local ", facts.local_rank, "] ");
    case Label::host: return concat('[', facts.hostname, ':', role, facts.rank, "] ");
    case Label::torchrun: return concat('[', facts.role, facts.local_rank, "]:");
    case Label::automatic: break;
  }
  return facts.workers > 1 ? concat('[', role, facts.rank, "] ") : "";
}

std::string folded_label(const std::vector<int>& ranks, const std::string& scope) {
  return concat('[', scope, scope.empty() ? "" : ":", fold_ranks(ranks), "] ");
}

std::string colored_label(int position, const std::string& label) {
  // Cyan, yellow, green, magenta, blue, and the bright ones: red is for errors, and neighbours differ.
  static constexpr std::array<int, 10> colors{36, 33, 32, 35, 34, 96, 93, 92, 95, 94};
  return concat("\033[", colors[static_cast<std::size_t>(position) % colors.size()], 'm', label, "\033[m");
}

std::size_t screen_width(std::string_view prefix) {
  std::size_t width = 0;
  bool in_color = false;
  for (const char c : prefix) {
    in_color = in_color || c == '\033';
    if (!in_color && (static_cast<unsigned char>(c) & 0xC0U) != 0x80U) ++width;
    if (c == 'm') in_color = false;
  }
  return width;
}

std::string time_stamp(std::chrono::system_clock::time_point now) {
  const auto since_epoch = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count();
  // localtime_r costs more than a line of output, so it is called once per second.
  static thread_local std::time_t known_second = -1;
  static thread_local std::array<char, 16> text{};
  const std::time_t second = since_epoch / 1000;
  if (second != known_second) {
    std::tm parts{};
    localtime_r(&second, &parts);
    std::strftime(text.data(), text.size(), "%H:%M:%S.", &parts);
    known_second = second;
  }
  const int millis = static_cast<int>(since_epoch % 1000);
  text[9] = static_cast<char>('0' + millis / 100);
  text[10] = static_cast<char>('0' + millis / 10 % 10);
  text[11] = static_cast<char>('0' + millis % 10);
  text[12] = ' ';
  return {text.data(), 13};
}

}  // namespace ddrun::logs
