#include "option_table.hpp"

#include <algorithm>

#include "ddrun/base/text.hpp"

namespace ddrun::cli {

std::span<const Option* const> all_options() {
  static const std::vector<const Option*> options = [] {
    std::vector<const Option*> all;
    all.reserve(80);
    for (const auto part : {worker_options(), failure_options(), output_options(), launcher_options(),
                            rendezvous_options(), several_options(), remote_options()}) {
      for (const Option& option : part) all.push_back(&option);
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

const Option* find_short(char letter) {
  for (const Option* option : all_options()) {
    if (option->shorts.find(letter) != std::string_view::npos) return option;
  }
  return nullptr;
}

std::string with_dashes(std::string_view name) {
  std::string text(name);
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
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

std::string_view group_title(Group group) {
  switch (group) {
    case Group::workers: return "Workers";
    case Group::program: return "Program";
    case Group::failure: return "Failure, restart and the end";
    case Group::output: return "Output";
    case Group::launcher: return "ddrun itself";
    case Group::rendezvous: return "Rendezvous, as with torchrun";
    case Group::several: return "Several machines";
    case Group::remote: return "Other machines, through ssh";
    case Group::torchrun: return "Taken from torchrun command lines";
  }
  return {};
}

}  // namespace ddrun::cli
