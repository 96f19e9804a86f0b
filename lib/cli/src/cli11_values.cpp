#include "cli11_values.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "ddrun/base/text.hpp"

namespace ddrun::cli {

namespace {

/// "--tee,-t". The spelling with '_' is not needed: split_argv() has written all names with '-'.
std::string cli11_names(const Option& option) {
  std::string names = concat("--", option.name);
  for (const char letter : option.shorts) names += concat(",-", letter);
  return names;
}

/// "--max-memory,--max_memory"
std::string both_spellings(std::string_view name) {
  std::string other(name);
  std::replace(other.begin() + 2, other.end(), '-', '_');
  return other == name ? other : concat(name, ",", other);
}

}  // namespace

Result<std::vector<OptionValues>> read_values(const Argv& argv) {
  std::vector<OptionValues> all;
  if (argv.ours.empty()) return all;
  try {
    CLI::App app;
    app.set_help_flag();
    std::vector<CLI::Option*> options;
    // Only what occurs: CLI11 compares every new option with all others, which for the whole table takes 0.7 ms.
    for (const Option* option : argv.used) {
      CLI::Option* added = option->takes_value() ? app.add_option(cli11_names(*option))->expected(1)
                                                 : app.add_flag(cli11_names(*option));
      // Else a value such as "[a,b]" would be cut up.
      added->allow_extra_args(false);
      // All values are kept here; which of several counts is decided below, as argparse does it.
      added->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
      options.push_back(added);
    }
    std::vector<std::string> reversed(argv.ours.rbegin(), argv.ours.rend());
    app.parse(std::move(reversed));
    for (std::size_t i = 0; i < options.size(); ++i) {
      const Option* option = argv.used[i];
      std::vector<std::string> values = options[i]->results();
      if (option->kind == Kind::count &&
          std::all_of(values.begin(), values.end(), [](const std::string& v) { return v == "true"; })) {
        values = {std::to_string(std::min<std::size_t>(values.size(), 9))};
      }
      if (option->kind != Kind::assignments && values.size() > 1) values.erase(values.begin(), values.end() - 1);
      all.push_back({option, std::move(values)});
    }
  } catch (const CLI::Error& error) {
    return fail(Errc::invalid_argument, error.what());
  }
  return all;
}

Result<PlainWords> read_plain(std::span<const PlainOption> options, std::span<const std::string> words) {
  PlainWords found;
  try {
    CLI::App app;
    app.set_help_flag();
    app.add_option("words", found.words);
    std::vector<CLI::Option*> added;
    for (const auto& option : options) {
      const std::string name = both_spellings(option.name);
      added.push_back(option.takes_value ? app.add_option(name)->expected(1) : app.add_flag(name));
      added.back()->allow_extra_args(false)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    }
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
    for (std::size_t i = 0; i < added.size(); ++i) {
      if (added[i]->count() == 0) continue;
      found.values[options[i].name] = options[i].takes_value ? added[i]->results() : std::vector<std::string>{""};
    }
  } catch (const CLI::Error& error) {
    return fail(Errc::invalid_argument, error.what());
  }
  return found;
}

}  // namespace ddrun::cli
