#include "settings.hpp"

#include <algorithm>

#include "ddrun/base/text.hpp"
#include "ddrun/cli/values.hpp"

namespace ddrun::cli {

namespace {

const GivenValue not_given{};

struct Variable {
  std::string_view name;
  std::string_view value;
};

/// The variables that could set an option. Usually none, which saves a walk over the table.
std::vector<Variable> candidates(const Environment& environment) {
  std::vector<Variable> found;
  for (const std::string_view text : environment.entries()) {
    if (!text.starts_with("DDRUN_") && !text.starts_with("PET_") && !text.starts_with("TORCH")) continue;
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos || equals + 1 == text.size()) continue;
    found.push_back({text.substr(0, equals), text.substr(equals + 1)});
  }
  return found;
}

/// DDRUN_ENV holds one NAME=VALUE per line, as values may well contain commas and blanks.
std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines = split(text, '\n');
  for (std::string& line : lines) {
    if (line.ends_with('\r')) line.pop_back();
  }
  std::erase_if(lines, [](const std::string& line) { return trim(line).empty(); });
  return lines;
}

/// Blanks are significant in filter texts and in a line prefix.
bool keeps_blanks(const Option& option) {
  return option.kind == Kind::names || option.name == "log-line-prefix-template";
}

}  // namespace

Settings::Settings() {
  for (const Option* option : all_options()) {
    if (option->is_setting()) entries_.push_back({option, {}});
  }
}

Settings::Entry& Settings::entry(const Option& option) {
  return *std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.option == &option; });
}

void Settings::add(const Option& option, GivenValue given) { entry(option).given.push_back(std::move(given)); }

void Settings::add_file(const std::vector<FileValue>& values, Scope scope, Source source) {
  for (const FileValue& value : values) {
    if (!is_in(scope, *value.option)) continue;
    const std::string shown = value.values.size() == 1 ? concat(" = ", value.values.front()) : std::string();
    add(*value.option, {source, "file " + value.where, concat(value.where, ": ", value.key, shown), value.values});
  }
}

void Settings::add_variables(const Environment& environment, Scope scope) {
  const std::vector<Variable> variables = candidates(environment);
  if (variables.empty()) return;
  for (Entry& entry : entries_) {
    if (!is_in(scope, *entry.option)) continue;
    for (const std::string& name : variables_of(*entry.option)) {
      const auto found = std::ranges::find(variables, name, &Variable::name);
      if (found == variables.end()) continue;
      std::vector<std::string> values;
      if (is_repeatable(entry.option->kind)) values = lines_of(found->value);
      else if (keeps_blanks(*entry.option)) values = {std::string(found->value)};
      else values = {std::string(trim_typed(found->value))};
      entry.given.push_back(
          {Source::variable, concat("variable ", name), concat(name, "=", found->value), std::move(values)});
      break;
    }
  }
}

void Settings::add_command_line(const argv::CommandLine& line, Scope scope, Source source) {
  for (const auto& [typed, values] : line.options) {
    const Option* const option = find_option(typed->name);
    if (option == nullptr || !option->is_setting() || !is_in(scope, *option)) continue;
    GivenValue given{source, "command line", concat("--", option->name), values};
    const bool counted = option->kind == Kind::count && values == std::vector<std::string>(values.size(), "true");
    // A repeated flag is counted; of several values the last one counts, as with argparse.
    if (counted) given.values = {std::to_string(std::min<std::size_t>(values.size(), 9))};
    else if (!is_repeatable(option->kind)) given.values = {values.back()};
    if (option->takes_value() && given.values.size() == 1) given.prefix += concat('=', given.values.front());
    add(*option, std::move(given));
  }
}

const GivenValue& Settings::of(const Option& option) const {
  for (const Entry& entry : entries_) {
    if (entry.option == &option) return entry.given.empty() ? not_given : entry.given.back();
  }
  return not_given;
}

const GivenValue& Settings::of(std::string_view name) const {
  const Option* option = find_option(name);
  return option == nullptr ? not_given : of(*option);
}

bool Settings::is_on(std::string_view name) const {
  const Option* option = find_option(name);
  if (option == nullptr) return false;
  const GivenValue& given = of(*option);
  if (given.source == Source::standard || given.values == option->show(ParsedOptions{})) return false;
  const std::string_view value = given.values.empty() ? std::string_view() : given.values.back();
  if (option->takes_value() && value.empty()) return false;
  const bool is_switch = option->kind == Kind::flag || option->kind == Kind::count;
  return !is_switch || parse_bool(value).value_or(true);
}

void Settings::move(std::string_view from, std::string_view to, const std::string& value) {
  Entry& source = entry(*find_option(from));
  GivenValue given = source.given.back();
  source.given.clear();
  given.where += concat(", --", from, "=", given.values.back());
  given.values = {value};
  add(*find_option(to), std::move(given));
}

Result<void> Settings::exclude(std::string_view one, std::string_view other) {
  if (!is_on(one) || !is_on(other)) return {};
  const GivenValue& first = of(one);
  const GivenValue& second = of(other);
  if (first.source == second.source) {
    return fail(Errc::invalid_argument,
                concat("--", one, " and --", other, " exclude each other (", first.where,
                       first.where == second.where ? std::string() : concat(" and ", second.where), "); give one"));
  }
  const std::string_view weaker = first.source < second.source ? one : other;
  entry(*find_option(weaker)).given.clear();
  return {};
}

cluster::GivenOptions Settings::given() const {
  cluster::GivenOptions all;
  for (const auto& [option, given] : entries_) {
    if (given.empty()) continue;
    const GivenValue& last = given.back();
    if (option->takes_value() && last.values == std::vector<std::string>{""}) continue;  // --rdzv-id=$UNSET
    std::string where = concat("--", option->name);
    if (last.source < Source::command_line) where = last.where.substr(last.where.find(' ') + 1);
    all.emplace(option->name, std::move(where));
  }
  return all;
}

Result<void> Settings::apply_to(ParsedOptions& parsed) const {
  for (const auto& [option, given] : entries_) {
    if (given.empty()) continue;
    // A report is written anew: where a stronger source names one, that of a weaker one may be another job's.
    const bool all = is_repeatable(option->kind) && option->name != "report";
    for (std::size_t i = all ? 0 : given.size() - 1; i < given.size(); ++i) {
      for (const std::string& value : given[i].values) {
        if (const auto done = option->set(parsed, value); !done) {
          return fail(Errc::invalid_argument, concat(given[i].prefix, ": ", done.error().message));
        }
      }
    }
  }
  return {};
}

}  // namespace ddrun::cli
