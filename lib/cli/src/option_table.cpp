#include "option_table.hpp"

#include <algorithm>
#include <iterator>

#include "ddrun/base/text.hpp"

namespace ddrun::cli {

namespace {

struct OptionGroup {
  Group group;
  std::string_view title;
  std::span<const Option> (*options)();
};

constexpr OptionGroup groups[] = {
    {Group::workers, "Workers", worker_options},
    {Group::program, "Program", program_options},
    {Group::failure, "Failure, restart and the end", failure_options},
    {Group::output, "Output", output_options},
    {Group::launcher, "ddrun itself", launcher_options},
    {Group::rendezvous, "Rendezvous, as with torchrun", rendezvous_options},
    {Group::torchrun, "Taken from torchrun command lines", torchrun_options},
    {Group::several, "Several machines", several_options},
    {Group::remote, "Other machines, through ssh", remote_options},
};

const OptionGroup& row_of(Group group) {
  return *std::find_if(std::begin(groups), std::end(groups),
                       [&](const OptionGroup& one) { return one.group == group; });
}

}  // namespace

std::string_view group_title(Group group) { return row_of(group).title; }
std::span<const Option> options_of(Group group) { return row_of(group).options(); }

std::span<const Option* const> all_options() {
  static const std::vector<const Option*> options = [] {
    std::vector<const Option*> all;
    all.reserve(80);
    for (const OptionGroup& group : groups) {
      for (const Option& option : group.options()) all.push_back(&option);
    }
    return all;
  }();
  return options;
}

const Option* find_option(std::string_view long_name) {
  const auto same = [&](const Option* option) {
    return std::equal(long_name.begin(), long_name.end(), option->name.begin(), option->name.end(),
                      [](char typed, char ours) { return typed == ours || (typed == '_' && ours == '-'); });
  };
  const auto options = all_options();
  const auto found = std::find_if(options.begin(), options.end(), same);
  return found == options.end() ? nullptr : *found;
}

argv::Option as_argument(const Option& option) {
  return {option.name, option.shorts, option.takes_value() ? option.metavar : std::string_view(), option.help,
          option.kind == Kind::action};
}

std::string variable_name(std::string_view prefix, std::string_view long_name) {
  std::string text(prefix);
  for (const char c : long_name) {
    if (c == '-') text += '_';
    else text += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  }
  return text;
}

std::vector<std::string> variables_of(const Option& option) {
  std::vector<std::string> names;
  if (option.is_setting() || option.name == "config") names.push_back(variable_name("DDRUN_", option.name));
  if (option.pet) names.push_back(variable_name("PET_", option.name));
  if (!option.other_variable.empty()) names.emplace_back(option.other_variable);
  return names;
}

}  // namespace ddrun::cli
