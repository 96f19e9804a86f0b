#include <algorithm>
#include <cctype>

#include "ddrun/base/text.hpp"
#include "ddrun/cli/values.hpp"
#include "ddrun/worker_env/worker_environment.hpp"
#include "settings.hpp"

namespace ddrun::cli {

namespace {

/// The text in the quotes with which `text` begins; in double quotes \n, \t, \" and \\ are escapes.
Result<std::string> quoted_value(std::string_view text) {
  const char quote = text.front();
  std::string value;
  std::size_t at = 1;
  for (; at < text.size() && text[at] != quote; ++at) {
    const bool may_escape = quote == '"' && text[at] == '\\' && at + 1 < text.size();
    const std::size_t escape = may_escape ? std::string_view("nt\"\\").find(text[at + 1]) : std::string_view::npos;
    value += escape == std::string_view::npos ? text[at] : "\n\t\"\\"[escape];
    if (escape != std::string_view::npos) ++at;
  }
  if (at >= text.size()) {
    return bad(concat("a closing ", quote, " is missing; write it at the end of the value, on the same line",
                      quote == '"' ? " (\\n is a line end)" : ""));
  }
  const std::string_view rest = trim(text.substr(at + 1));
  if (rest.empty() || rest.front() == '#') return value;
  return bad(concat("there is text behind the closing ", quote, "; put quotes around the whole value"));
}

/// Up to a '#' behind a blank, which begins a comment.
std::string plain_value(std::string_view text) {
  return std::string(trim(text.substr(0, std::min(text.find(" #"), text.find("\t#")))));
}

/// Whether a shell, or another reader of such files, would replace something in `value`.
bool asks_for_expansion(std::string_view value) {
  for (std::size_t at = value.find('$'); at != std::string_view::npos; at = value.find('$', at + 1)) {
    const std::string_view next = value.substr(at + 1, 1);
    if (!next.empty() && (std::isalpha(static_cast<unsigned char>(next[0])) != 0 || next.find_first_of("{(_") == 0))
      return true;
  }
  return false;
}

/// The messages do not show the line, which may hold a secret.
Result<std::pair<std::string, std::string>> read_line(std::string_view line) {
  if (line.starts_with("export ") || line.starts_with("export\t")) line = trim(line.substr(6));
  const std::size_t equals = line.find('=');
  if (equals == std::string_view::npos) return bad("there is no '='; write NAME=VALUE, or # before a comment");
  const std::string_view name = trim(line.substr(0, equals));
  if (name.empty() || name.find_first_of(" \t'\":$") != std::string_view::npos) {
    return bad("no name of a variable stands before the '='; write NAME=VALUE");
  }
  const std::string_view text = line.substr(equals + 1);
  const std::string_view value = trim(text);
  if (!value.starts_with('"') && !value.starts_with('\'')) return std::pair(std::string(name), plain_value(text));
  auto quoted = TRY(quoted_value(value));
  return std::pair(std::string(name), std::move(quoted));
}

}  // namespace

Result<Variables> read_env_file(const std::string& path, bool has_world, std::vector<std::string>& warnings) {
  const auto text = TRY(read_text_file(path, "file"));
  Variables variables;
  int number = 0;
  for (const std::string& whole :
       split(std::string_view(text).substr(text.starts_with("\xef\xbb\xbf") ? 3 : 0), '\n')) {
    ++number;
    const std::string_view line = trim(whole);  // also of the '\r' of a file from Windows
    if (line.empty() || line.front() == '#') continue;
    auto variable =
        line.find('\0') == std::string_view::npos ? read_line(line) : bad("it is not text; save the file as UTF-8");
    if (!variable) return bad(concat(path, ":", number, ": ", variable.error().message));
    if (const auto given = worker_env::check_variable(variable->first, has_world); !given) {
      return bad(concat(path, ":", number, ": ", given.error().message));
    }
    if (asks_for_expansion(variable->second) && !trim(line.substr(line.find('=') + 1)).starts_with('\'')) {
      warnings.push_back(concat(path, ":", number, ": a '$' is kept as it is, and no variable is expanded; write the ",
                                "value itself, or single quotes around it"));
    }
    variables.push_back(std::move(*variable));
  }
  return variables;
}

}  // namespace ddrun::cli
