#include <algorithm>

#include "ddrun/argv/argv.hpp"
#include "ddrun/base/text.hpp"
#include "settings.hpp"

namespace ddrun::cli {

namespace {

std::string explain(std::string_view name) {
  const ForeignOption* const option = find_foreign_option(name);
  return option == nullptr ? std::string() : concat(" (of ", option->launchers, "); ", option->hint);
}

std::vector<argv::Option> launch_options() {
  std::vector<argv::Option> options;
  for (const Option* option : all_options()) options.push_back(as_argument(*option));
  return options;
}

/// A flag that is repeated is counted; of several values the last counts, as argparse does it.
std::vector<std::string> settled(const Option& option, std::vector<std::string> values) {
  if (option.kind == Kind::count &&
      std::all_of(values.begin(), values.end(), [](const std::string& value) { return value == "true"; })) {
    return {std::to_string(std::min<std::size_t>(values.size(), 9))};
  }
  if (option.kind != Kind::assignments) values.erase(values.begin(), values.end() - 1);
  return values;
}

}  // namespace

Result<CommandLine> read_command_line(std::span<const std::string> arguments) {
  static const std::vector<argv::Option> options = launch_options();
  auto read = argv::read({options, argv::Words::program, "ddrun --help", explain, "np"}, arguments);
  if (!read) return tl::unexpected(std::move(read.error()));
  const auto of = [&](const argv::Option* option) {
    return all_options()[static_cast<std::size_t>(option - &options[0])];
  };
  CommandLine line;
  line.program = std::move(read->words);
  line.separated = read->separated;
  if (read->action != nullptr) line.action = of(read->action);
  for (auto& [option, values] : read->options) {
    line.options.push_back({of(option), settled(*of(option), std::move(values))});
  }
  return line;
}

}  // namespace ddrun::cli
