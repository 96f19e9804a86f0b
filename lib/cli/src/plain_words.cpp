#include "ddrun/cli/parse.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "ddrun/base/text.hpp"

namespace ddrun::cli {

namespace {

/// "--max-memory,--max_memory"
std::string both_spellings(std::string_view name) {
  std::string other(name);
  std::replace(other.begin() + 2, other.end(), '-', '_');
  return other == name ? other : concat(name, ",", other);
}

}  // namespace

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
