#include <algorithm>
#include <cctype>
#include <set>

#include "ddrun/base/text.hpp"
#include "ddrun/cli/values.hpp"
#include "settings.hpp"

// Several programs on one command line.

namespace ddrun::cli {

namespace {

using Words = std::span<const std::string>;

/// Behind a ':'. Not with other short options: torchrun has -m, -r and -t, and passes a ':' to its script.
bool begins_program(Words words) {
  const auto typed = option_at(words);
  if (!typed || !is_of_program(*typed->option)) return false;
  return words.front().starts_with("--") || (words.front().starts_with("-n") && parse_nproc(typed->value));
}

bool is_colons(const std::string& word) { return word.size() > 1 && word.find_first_not_of(':') == std::string::npos; }

/// One process per job can be what the workers are forks of.
Result<void> check_preload(const std::vector<ParsedProgram>& programs) {
  int asking = 0;
  for (const ParsedProgram& program : programs) asking += program.options.program.preload.empty() ? 0 : 1;
  if (asking < 2) return {};
  return bad("--preload is for one program of a job: write it before that program");
}

/// A later part has options of its program only, and a program.
Result<void> check_part(const argv::CommandLine& part) {
  for (const auto& [typed, values] : part.options) {
    const Option* const option = find_option(typed->name);
    if (option != nullptr && is_of_program(*option)) continue;
    return bad(concat("--", typed->name, " is of the whole job: write it before the first program"));
  }
  if (!part.positionals.empty()) return {};
  return bad("no program stands behind the options that follow ':'; to pass a ':' to the program write ::");
}

}  // namespace

std::optional<TypedOption> option_at(Words words) {
  for (std::size_t count = 1; count <= std::min<std::size_t>(words.size(), 2); ++count) {
    const auto line = read_command_line(words.first(count));
    if (!line || line->options.empty()) continue;
    const auto& [typed, values] = line->options.front();
    return TypedOption{find_option(typed->name), values.front(), count};
  }
  return std::nullopt;
}

Result<std::vector<argv::CommandLine>> read_parts(Words arguments, bool has_json, std::vector<std::string>& warnings) {
  std::vector<argv::CommandLine> parts;
  for (bool ends = false; !ends;) {
    auto line = TRY(read_command_line(arguments, has_json));
    std::vector<std::string>& words = line.positionals;
    std::size_t end = 0;
    for (; end < words.size(); ++end) {
      if (words[end] != ":" || line.has_separator) continue;
      const Words rest = Words(words).subspan(end + 1);
      if (begins_program(rest)) break;
      if (rest.empty() || !rest.front().starts_with("--") || !option_at(rest)) continue;
      warnings.push_back(concat("':' stayed an argument of ", words.front(),
                                "; a next program begins with -n N or a long option of a program: ': -n 1 ./b'"));
    }
    ends = end == words.size() || line.action != nullptr;
    if (!ends) arguments = arguments.last(words.size() - end - 1);
    words.resize(end);
    parts.push_back(std::move(line));
    if (parts.size() == 1) continue;
    TRY(check_part(parts.back()));
  }
  if (parts.size() == 1) return parts;
  for (argv::CommandLine& part : parts) {
    for (std::string& word : part.positionals) {
      if (is_colons(word)) word.pop_back();
    }
  }
  return parts;
}

Result<void> name_programs(std::vector<ParsedProgram>& programs) {
  TRY(check_preload(programs));
  constexpr std::size_t longest = 32;
  const auto is_name_char = [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_'; };
  // In capitals: names of variables are made from it.
  const auto in_capitals = [](std::string name) {
    for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    return name;
  };
  const auto is_named = [](const ParsedProgram& program) {
    const GivenValue& given = program.settings.of("role");
    return given.source != Source::standard && given.values != std::vector<std::string>{""};
  };
  std::set<std::string> taken;
  for (const ParsedProgram& program : programs) {
    if (!is_named(program)) continue;
    const std::string& role = program.options.program.role;
    const std::string prefix = program.settings.of("role").prefix;
    if (role.size() > longest || !std::all_of(role.begin(), role.end(), is_name_char)) {
      return bad(
          concat(prefix, ": with several programs a role is of letters, digits, - and _, ", longest, " at most"));
    }
    if (!taken.insert(in_capitals(role)).second) return bad(concat(prefix, ": two programs have this role"));
  }
  for (ParsedProgram& program : programs) {
    if (is_named(program)) continue;
    const ProgramSpec& spec = program.options.program;
    std::string name = spec.name;
    const auto script = std::ranges::find_if(spec.args, [](const auto& word) { return word.ends_with(".py"); });
    const bool by_python = name.find("python", name.rfind('/') + 1) != std::string::npos;
    if (by_python && script != spec.args.end()) name = *script;
    name.erase(0, name.rfind('/') + 1);
    if (spec.kind == ProgramKind::python_module) name.erase(0, name.rfind('.') + 1);
    else if (const std::size_t dot = name.rfind('.'); dot != std::string::npos && dot > 0) name.resize(dot);
    name.resize(std::min(name.size(), longest - 4));
    std::replace_if(
        name.begin(), name.end(), [&](char c) { return !is_name_char(static_cast<unsigned char>(c)); }, '-');
    std::string role = name;
    for (int number = 2; !taken.insert(in_capitals(role)).second; ++number) role = concat(name, "-", number);
    program.options.program.role = std::move(role);
  }
  return {};
}

}  // namespace ddrun::cli
