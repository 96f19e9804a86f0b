#include <nlohmann/json.hpp>

#include "ddrun/base/text.hpp"
#include "texts.hpp"

namespace ddrun::cli {

namespace {

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      constexpr char digits[] = "0123456789abcdef";
      out += concat("\\u00", digits[byte >> 4], digits[byte & 15]);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string quoted_list(const std::vector<std::string>& items) {
  std::string out = "[";
  for (const std::string& item : items) out += concat(out.size() == 1 ? "" : ", ", in_quotes(item));
  return out + "]";
}

/// Whether TOML may have it as a bare number.
bool is_plain_number(std::string_view text) {
  const std::size_t point = text.find('.');
  const std::string_view whole = text.substr(0, point);
  const auto digits = [](std::string_view part) {
    return !part.empty() && part.size() <= 18 && part.find_first_not_of("0123456789") == std::string_view::npos;
  };
  if (!digits(whole) || (whole.size() > 1 && whole[0] == '0')) return false;
  return point == std::string_view::npos || digits(text.substr(point + 1));
}

std::string toml_value(const Option& option, const std::vector<std::string>& values) {
  switch (option.kind) {
    case Kind::flag: return values.front();
    case Kind::assignments: return quoted_list(values);
    case Kind::count:
    case Kind::integer:
    case Kind::number:
    case Kind::duration:
    case Kind::size:
    case Kind::word_or_int:
    case Kind::streams:
    case Kind::numbers:
      if (is_plain_number(values.front())) return values.front();
      break;
    default: break;
  }
  return in_quotes(values.front());
}

std::string line(std::string setting, std::string_view origin) {
  if (setting.size() < 40) setting.resize(40, ' ');
  return concat(setting, "  # ", origin, "\n");
}

std::string_view origin_of(const Settings& settings, const Option& option) {
  const Given& given = settings.of(option);
  return given.source == Source::standard ? std::string_view("default") : given.where;
}

std::vector<std::string> program_words(const Draft& draft) {
  std::vector<std::string> words{draft.spec.program.name};
  words.insert(words.end(), draft.spec.program.args.begin(), draft.spec.program.args.end());
  return words;
}

}  // namespace

std::string config_text(const Draft& draft, const Settings& settings, std::string_view program_origin) {
  std::string text;
  for (const Option* option : all_options()) {
    if (!option->is_setting()) continue;
    const auto values = option->show(draft);
    const std::string_view origin = origin_of(settings, *option);
    text += values.empty() ? line(concat("# ", option->name, " is not set"), origin)
                           : line(concat(option->name, " = ", toml_value(*option, values)), origin);
  }
  if (program_origin.empty()) return text + line("# program is not set", "default");
  return text + line(concat("program = ", quoted_list(program_words(draft))), program_origin);
}

std::string config_json(const Draft& draft, const Settings& settings, std::string_view program_origin) {
  nlohmann::ordered_json json;
  for (const Option* option : all_options()) {
    if (!option->is_setting()) continue;
    auto& out = json[std::string(option->name)];
    const auto values = option->show(draft);
    if (option->kind == Kind::assignments) out["value"] = values;
    else if (values.empty()) out["value"] = nullptr;
    else if (option->kind == Kind::flag) out["value"] = values.front() == "true";
    else out["value"] = values.front();
    out["from"] = origin_of(settings, *option);
  }
  auto& program = json["program"];
  program["value"] = program_origin.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(program_words(draft));
  program["from"] = program_origin.empty() ? std::string_view("default") : program_origin;
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace ddrun::cli
