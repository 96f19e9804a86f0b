#include "ddrun/argv/argv.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::argv {

namespace {

constexpr std::size_t columns = 79;
constexpr std::size_t help_column = 30;

/// Words of `text` in lines of `width`; the first begins at `column` already.
std::string wrapped(std::string_view text, std::size_t column) {
  std::string out;
  std::size_t at = column;
  for (const std::string& word : split(text, ' ')) {
    if (at > column && at + 1 + word.size() > columns) {
      out += concat("\n", std::string(column, ' '));
      at = column;
    } else if (at > column) {
      out += ' ';
      ++at;
    }
    out += word;
    at += word.size();
  }
  return out;
}

}  // namespace

std::string describe(const Option& option, std::string_view what) {
  std::string text = option.shorts.empty() ? std::string("      ") : concat("  -", option.shorts[0], ", ");
  text += concat("--", option.name);
  if (!option.metavar.empty()) text += concat('=', option.metavar);
  text += text.size() + 2 > help_column ? concat('\n', std::string(help_column, ' '))
                                        : std::string(help_column - text.size(), ' ');
  return concat(text, wrapped(what, help_column), '\n');
}

std::string describe(std::span<const Option> options) {
  std::string text;
  for (const Option& option : options) {
    if (!option.help.empty()) text += describe(option, option.help);
  }
  return text;
}

}  // namespace ddrun::argv
