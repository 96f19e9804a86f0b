#include "commands.hpp"

#include <algorithm>
#include <array>
#include <exception>

#include "ddrun/agent/job_result.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/cli/values.hpp"

namespace ddrun {

namespace {

bool asks_for_help(std::span<const std::string> words) {
  return words.size() == 1 && (words[0] == "--help" || words[0] == "-h");
}

Parsed parse_config(std::span<const std::string> rest, const cli::Asking& asking) {
  if (asks_for_help(rest)) return cli::answer(std::string(cli::config_help));
  if (rest.empty() || rest[0] != "show") {
    return cli::usage_error(
        "usage: ddrun config show [--json] [options] [--] [program] (a program called config: ddrun -- config)");
  }
  return cli::show_config(rest.subspan(1), asking);
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

Result<std::uint16_t> parse_port(std::string_view text, int lowest) {
  const auto port = cli::parse_int(text, lowest, 65535);
  if (!port) return fail(Errc::invalid_argument, concat("port ", port.error().message));
  return static_cast<std::uint16_t>(*port);
}

int say_failure(const Error& error, std::optional<int> code) {
  say_error(error.message);
  return code.value_or(agent::exit_code(error.code));
}

cli::PrintAndExit wrong_usage(std::string_view word, std::string_view message) {
  return {concat("ddrun: error: ", message, " (see 'ddrun ", word, " --help')\n"), true, exit_codes::usage};
}

tl::expected<argv::CommandLine, cli::PrintAndExit> read_words(std::string_view word,
                                                              std::span<const argv::Option> options,
                                                              std::string (*help)(),
                                                              std::span<const std::string> rest) {
  const std::string how = concat("ddrun ", word, " --help");
  auto read = argv::read({options, argv::Words::anywhere, how}, rest);
  if (!read) return tl::unexpected(cli::usage_error(read.error().message));
  if (read->action != nullptr) return tl::unexpected(cli::answer(help()));
  return std::move(*read);
}

}  // namespace ddrun
