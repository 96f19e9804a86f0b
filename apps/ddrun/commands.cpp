#include "commands.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <exception>

#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun {

namespace {

bool asks_for_help(std::span<const std::string> words) { return words.size() == 1 && has_help(words); }

Parsed parse_config(std::span<const std::string> rest, const cli::Asking& asking) {
  if (asks_for_help(rest)) return cli::answer(std::string(cli::config_help));
  if (rest.empty() || rest[0] != "show") {
    return cli::usage_error(
        "usage: ddrun config show [--json] [options] [--] [program] (a program called config: ddrun -- config)");
  }
  std::vector<std::string> options(rest.begin() + 1, rest.end());
  const bool json = take_out(options, "--json");
  return cli::show_config(options, json, asking);
}

Parsed parse_completion(std::span<const std::string> rest, const cli::Asking& /*asking*/) {
  constexpr std::string_view usage =
      "usage: ddrun completion bash|zsh|fish (a program called completion: ddrun -- completion)";
  if (asks_for_help(rest)) return cli::answer(concat(usage, "\n"));
  if (rest.size() == 1) return cli::completion(rest[0]);
  return cli::usage_error(usage);
}

Parsed parse_version(std::span<const std::string> rest, const cli::Asking& asking) {
  constexpr std::string_view usage = "usage: ddrun version [--json] (a program called version: ddrun -- version)";
  if (asks_for_help(rest)) return cli::answer(concat(usage, "\n"));
  if (rest.empty() || (rest.size() == 1 && rest[0] == "--verbose"))
    return cli::answer(cli::version_text(asking.version));
  if (rest.size() == 1 && rest[0] == "--json") return cli::answer(cli::version_json(asking.version));
  return cli::usage_error(usage);
}

Parsed parse_help(std::span<const std::string> rest, const cli::Asking& asking);

constexpr std::array<Command, 8> commands{{
    {"completion", parse_completion},
    {"config", parse_config},
    {"env", parse_env, run_env},
    {"help", parse_help},
    {"rendezvous", parse_rendezvous, run_rendezvous},
    {"secret", parse_secret, run_secret},
    {"store", parse_store, run_store},
    {"version", parse_version},
}};

const Command* command_called(std::string_view word) {
  const auto* found = std::find_if(commands.begin(), commands.end(), [&](const Command& c) { return c.word == word; });
  return found == commands.end() ? nullptr : found;
}

/// `ddrun help`, and `ddrun help store`, which is `ddrun store --help`.
Parsed parse_help(std::span<const std::string> rest, const cli::Asking& asking) {
  if (rest.empty()) return cli::answer(cli::help_text());
  const Command* const asked = rest[0] == "help" ? nullptr : command_called(rest[0]);
  if (rest.size() == 1 && asked != nullptr) {
    const std::string help = "--help";
    return asked->parse({&help, 1}, asking);
  }
  std::string words;
  for (const Command& command : commands) {
    if (command.word != "help") words += concat(words.empty() ? "" : "|", command.word);
  }
  return cli::usage_error(concat("usage: ddrun help [", words, "] (a program called help: ddrun -- help)"));
}

}  // namespace

const Command* find_command(std::span<const std::string> arguments) {
  const Command* const found = arguments.empty() ? nullptr : command_called(arguments[0]);
  if (found != nullptr && found->word == "env" && starts_env_program(arguments.size() > 1 ? arguments[1] : "")) {
    return nullptr;
  }
  return found;
}

Parsed parse(const std::vector<std::string>& arguments, const Environment& environment, const cli::VersionInfo& version,
             bool stderr_is_tty) {
  try {
    const cli::Asking asking{environment, version, stderr_is_tty};
    const std::span<const std::string> words = arguments;
    if (const Command* const command = find_command(words)) return command->parse(words.subspan(1), asking);
    return std::visit([](auto&& one) -> Parsed { return std::move(one); }, cli::parse_launch(words, asking));
  } catch (const std::exception& error) {
    return cli::PrintAndExit{concat("ddrun: error: cannot read the command line: ", error.what(), "\n"), true,
                             exit_codes::launcher_failed};
  }
}

bool take_out(std::vector<std::string>& words, std::string_view word) {
  const auto end = std::find(words.begin(), words.end(), "--");
  const auto kept = std::remove(words.begin(), end, word);
  const bool was_there = kept != end;
  words.erase(kept, end);
  return was_there;
}

cli::PrintAndExit wrong_usage(std::string_view word, std::string_view message) {
  return {concat("ddrun: error: ", message, " (see 'ddrun ", word, " --help')\n"), true, exit_codes::usage};
}

bool has_help(std::span<const std::string> words) {
  return std::any_of(words.begin(), words.end(), [](const std::string& w) { return w == "--help" || w == "-h"; });
}

// ---- options of commands that have no settings

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

}  // namespace ddrun
