#include <algorithm>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>

#include "ddrun/base/text.hpp"
#include "ddrun/cli/parse.hpp"
#include "settings.hpp"

// The settings of a job as a text: `config show`, and the schema of their file.

namespace ddrun::cli {

namespace {

std::string toml_string(std::string_view text) {
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

}  // namespace

std::string quoted_list(const std::vector<std::string>& items) {
  std::string out = "[";
  for (const std::string& item : items) out += concat(out.size() == 1 ? "" : ", ", toml_string(item));
  return out + "]";
}

namespace {

/// Whether it can be written as a bare TOML number.
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
  if (is_repeatable(option.kind)) return quoted_list(values);
  const bool is_number =
      (accepted_types_of(option.kind).types & (types::whole | types::fraction)) != 0 && option.kind != Kind::text;
  if (option.kind == Kind::flag || (is_number && is_plain_number(values.front()))) return values.front();
  return toml_string(values.front());
}

std::string line(std::string setting, std::string_view origin) {
  if (setting.size() < 40) setting.resize(40, ' ');
  return concat(setting, "  # ", origin, "\n");
}

std::string_view origin_of(const Settings& settings, const Option& option) {
  const GivenValue& given = settings.of(option);
  return given.source == Source::standard ? std::string_view("default") : given.where;
}

std::vector<std::string> program_argv(const ParsedOptions& parsed) {
  std::vector<std::string> words{parsed.program.name};
  words.insert(words.end(), parsed.program.args.begin(), parsed.program.args.end());
  return words;
}

void add_lines(std::string& text, const ParsedProgram& program, Scope scope) {
  for (const Option* option : all_options()) {
    if (!option->is_setting() || !is_in(scope, *option)) continue;
    const auto values = option->show(program.options);
    const std::string_view origin = origin_of(program.settings, *option);
    text += values.empty() ? line(concat("# ", option->name, " is not set"), origin)
                           : line(concat(option->name, " = ", toml_value(*option, values)), origin);
  }
}

void add_json(nlohmann::ordered_json& json, const ParsedProgram& program, Scope scope) {
  for (const Option* option : all_options()) {
    if (!option->is_setting() || !is_in(scope, *option)) continue;
    auto& out = json[std::string(option->name)];
    const auto values = option->show(program.options);
    if (is_repeatable(option->kind)) out["value"] = values;
    else if (values.empty()) out["value"] = nullptr;
    else if (option->kind == Kind::flag) out["value"] = values.front() == "true";
    else out["value"] = values.front();
    out["from"] = origin_of(program.settings, *option);
  }
}

}  // namespace

std::string config_text(const std::vector<ParsedProgram>& programs) {
  std::string text;
  const ParsedProgram& first = programs.front();
  const bool several = programs.size() > 1;
  add_lines(text, first, several ? Scope::job : Scope::all);
  if (!several && first.origin.empty()) return text + line("# program is not set", "default");
  if (!several) return text + line(concat("program = ", quoted_list(program_argv(first.options))), first.origin);
  for (const ParsedProgram& program : programs) {
    text += "\n[[program]]\n";
    add_lines(text, program, Scope::program);
    text += line(concat("command = ", quoted_list(program_argv(program.options))), program.origin);
  }
  return text;
}

std::string config_json(const std::vector<ParsedProgram>& programs) {
  nlohmann::ordered_json json;
  const ParsedProgram& first = programs.front();
  const bool several = programs.size() > 1;
  add_json(json, first, several ? Scope::job : Scope::all);
  const auto add_command = [](nlohmann::ordered_json& to, const ParsedProgram& program) {
    const bool is_set = !program.origin.empty();
    to["value"] = is_set ? nlohmann::ordered_json(program_argv(program.options)) : nlohmann::ordered_json();
    to["from"] = is_set ? std::string_view(program.origin) : std::string_view("default");
  };
  if (!several) add_command(json["program"], first);
  else {
    for (const ParsedProgram& program : programs) {
      auto& table = json["programs"].emplace_back();
      add_json(table, program, Scope::program);
      add_command(table["command"], program);
    }
  }
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

namespace {

using Json = nlohmann::ordered_json;

bool accepts(const Option& option, std::string_view value) {
  ParsedOptions unused;
  return option.set(unused, value).has_value();
}

/// The numbers that the option accepts, null if none; the bounds are found by asking it.
Json numbers(const Option& option) {
  const bool has_fraction = (accepted_types_of(option.kind).types & types::fraction) != 0 && accepts(option, "1.5");
  Json schema{{"type", has_fraction ? "number" : "integer"}};
  std::int64_t most = 0;
  if (!accepts(option, "-1")) {
    while (most < 10 && !accepts(option, std::to_string(most))) ++most;
    if (most == 10) return nullptr;
    const bool is_positive = has_fraction && most == 1;
    schema[is_positive ? "exclusiveMinimum" : "minimum"] = is_positive ? 0 : most;
  }
  std::int64_t refused = std::numeric_limits<std::int64_t>::max();
  if (accepts(option, std::to_string(refused))) return schema;
  while (refused - most > 1) {
    const std::int64_t between = most + (refused - most) / 2;
    (accepts(option, std::to_string(between)) ? most : refused) = between;
  }
  schema["maximum"] = most;
  return schema;
}

Json text_like(std::string_view pattern) { return {{"type", "string"}, {"pattern", concat("^(", pattern, ")$")}}; }

/// The texts that the option accepts, as far as a pattern can tell.
Json texts(const Option& option) {
  constexpr std::string_view range = "[0-9]+(-[0-9]+)?";
  switch (option.kind) {
    case Kind::duration: return text_like("[0-9]*\\.?[0-9]+|([0-9]*\\.?[0-9]+(ms|s|m|min|h|d))+");
    case Kind::size: return text_like("[0-9]*\\.?[0-9]+([Bb]|[KkMmGgTt]([Bb]|i[Bb])?)?");
    case Kind::streams: return text_like(concat("[0-3]|", range, ":[0-3](,", range, ":[0-3])*"));
    case Kind::numbers: return text_like(concat(accepts(option, "") ? "|" : "", " *", range, " *(, *", range, " *)*"));
    case Kind::choice_or_int:
      if (accepts(option, "no-number")) return {{"type", "string"}};
      return text_like(accepts(option, "1:2") ? "[0-9]+(:[0-9]+)?" : "[0-9]+");
    default: break;
  }
  Json schema{{"type", "string"}};
  if (!accepts(option, "")) schema["minLength"] = 1;
  return schema;
}

/// What one item of a list in the file may be.
Json items(const Option& option) {
  if (option.kind == Kind::assignments) return text_like(accepts(option, "NAME") ? "[^=].*" : "[^=]+=.*");
  if (option.kind == Kind::files) return texts(option);
  Json forms = Json::array({texts(option)});
  if (const Json known = numbers(option); !known.is_null()) forms.push_back(known);
  return {{"anyOf", forms}};
}

/// The values of `option` in a settings file.
Json value_schema(const Option& option) {
  const unsigned wanted = accepted_types_of(option.kind).types;
  Json forms = Json::array();
  if ((wanted & types::yes_no) != 0) forms.push_back({{"type", "boolean"}});
  if ((wanted & types::whole) != 0) {
    if (const Json known = numbers(option); !known.is_null()) forms.push_back(known);
  }
  if (!option.choices.empty()) forms.push_back({{"enum", split(option.choices, ' ')}});
  const bool is_open = option.choices.empty() || option.kind == Kind::duration || option.kind == Kind::choice_or_int;
  if ((wanted & types::text) != 0 && is_open) forms.push_back(texts(option));
  if ((wanted & types::list) != 0) forms.push_back({{"type", "array"}, {"items", items(option)}});
  if (option.kind == Kind::streams) {
    const Json names{{"pattern", "^[0-9]+(-[0-9]+)?$"}};
    forms.push_back({{"type", "object"}, {"propertyNames", names}, {"additionalProperties", {{"enum", {0, 1, 2, 3}}}}});
  } else if ((wanted & types::table) != 0) {
    forms.push_back({{"type", "object"}, {"additionalProperties", {{"type", {"string", "number"}}}}});
  }
  Json schema{{"description", option.help}};
  if (forms.size() == 1) schema.update(forms[0]);
  else schema["anyOf"] = std::move(forms);
  const auto values = option.show(ParsedOptions{});
  if (values.size() == 1) {
    const bool is_bare = option.kind == Kind::flag || is_plain_number(values[0]);
    schema["default"] = is_bare ? Json::parse(values[0]) : Json(values[0]);
  }
  return schema;
}

}  // namespace

std::string settings_schema() {
  const Json word{{"type", "string"}, {"minLength", 1}};
  const Json words{{"type", "array"}, {"minItems", 1}, {"items", {{"type", {"string", "integer"}}}}};
  Json table{{"type", "object"}, {"required", {"command"}}, {"additionalProperties", false}};
  Json job{{"$schema", "https://json-schema.org/draft/2020-12/schema"},
           {"title", "A settings file of ddrun, for --config=FILE"},
           {"description", "TOML. Keys are long options without the dashes in front, with - or _ between words."},
           {"type", "object"},
           {"additionalProperties", false}};
  for (const Option* option : all_options()) {
    if (!option->is_setting()) continue;
    const std::string name(option->name);
    job["properties"][name] = value_schema(*option);
    const Json same{{"$ref", "#/properties/" + name}};
    if (is_of_program(*option)) table["properties"][name] = same;
    if (name.find('-') == std::string::npos) continue;
    const std::string spellings = concat("^", join(split(name, '-'), "[-_]"), "$");
    job["patternProperties"][spellings] = same;
    if (is_of_program(*option)) table["patternProperties"][spellings] = same;
  }
  table["properties"]["command"] = {{"description", "The program and its arguments."},
                                    {"anyOf", {text_like("[^ ]+"), words}}};
  const Json one_program{{"anyOf", {word, words}}};
  job["properties"]["program"] = {{"description", "The program; or a table [[program]] for each of several."},
                                  {"anyOf", {word, words, {{"type", "array"}, {"minItems", 1}, {"items", table}}}}};
  job["properties"]["args"] = {
      {"description", "The program's arguments."}, {"type", "array"}, {"items", {{"type", {"string", "integer"}}}}};
  job["dependentSchemas"]["args"] = {{"required", {"program"}}, {"properties", {{"program", one_program}}}};
  return job.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace ddrun::cli
