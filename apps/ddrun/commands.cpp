#include "commands.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <exception>

#include "ddrun/agent/job_result.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/shared_output.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/cli/values.hpp"

namespace ddrun {

namespace {

bool asks_for_help(std::span<const std::string> words) {
  return words.size() == 1 && (words[0] == "--help" || words[0] == "-h");
}

Parsed parse_config(std::span<const std::string> rest, const cli::ParseContext& context) {
  if (asks_for_help(rest)) return cli::stdout_text(std::string(cli::config_help));
  if (rest.size() == 1 && rest[0] == "schema") return cli::stdout_text(cli::settings_schema());
  if (rest.empty() || rest[0] != "show") {
    return cli::usage_error(
        "usage: ddrun config show [--json] [options] [--] [program], ddrun config schema (a program called config: "
        "ddrun -- config)");
  }
  return cli::show_config(rest.subspan(1), context);
}

Parsed parse_completion(std::span<const std::string> rest, const cli::ParseContext& /*context*/) {
  constexpr std::string_view usage =
      "usage: ddrun completion bash|zsh|fish (a program called completion: ddrun -- completion)";
  if (asks_for_help(rest)) return cli::stdout_text(concat(usage, "\n"));
  if (rest.size() == 1) return cli::completion(rest[0]);
  return cli::usage_error(usage);
}

Parsed parse_version(std::span<const std::string> rest, const cli::ParseContext& context) {
  constexpr std::string_view usage = "usage: ddrun version [--json] (a program called version: ddrun -- version)";
  if (asks_for_help(rest)) return cli::stdout_text(concat(usage, "\n"));
  if (rest.empty() || (rest.size() == 1 && rest[0] == "--verbose"))
    return cli::stdout_text(cli::version_text(context.version));
  if (rest.size() == 1 && rest[0] == "--json") return cli::stdout_text(cli::version_json(context.version));
  return cli::usage_error(usage);
}

Parsed parse_help(std::span<const std::string> rest, const cli::ParseContext& context);

constexpr std::array<Command, 9> commands{{
    {"completion", parse_completion},
    {"config", parse_config},
    {"env", parse_env, run_env},
    {"help", parse_help},
    {"rendezvous", parse_rendezvous, run_rendezvous},
    {"secret", parse_secret, run_secret},
    {"stacks", parse_stacks, run_stacks},
    {"store", parse_store, run_store},
    {"version", parse_version},
}};

const Command* command_named(std::string_view name) {
  const auto* found = std::find_if(commands.begin(), commands.end(), [&](const Command& c) { return c.name == name; });
  return found == commands.end() ? nullptr : found;
}

/// `ddrun help`, and `ddrun help store`, which is `ddrun store --help`.
Parsed parse_help(std::span<const std::string> rest, const cli::ParseContext& context) {
  if (rest.empty()) return cli::stdout_text(cli::help_text());
  const Command* const command = rest[0] == "help" ? nullptr : command_named(rest[0]);
  if (rest.size() == 1 && command != nullptr) {
    const std::string help = "--help";
    return command->parse({&help, 1}, context);
  }
  std::string words;
  for (const Command& command : commands) {
    if (command.name != "help") words += concat(words.empty() ? "" : "|", command.name);
  }
  return cli::usage_error(concat("usage: ddrun help [", words, "] (a program called help: ddrun -- help)"));
}

}  // namespace

const Command* find_command(std::span<const std::string> arguments) {
  const Command* const found = arguments.empty() ? nullptr : command_named(arguments[0]);
  if (found != nullptr && found->name == "env" && starts_env_program(arguments.size() > 1 ? arguments[1] : "")) {
    return nullptr;
  }
  return found;
}

Parsed parse(const std::vector<std::string>& arguments, const Environment& environment, const cli::VersionInfo& version,
             bool stderr_is_tty) {
  try {
    const cli::ParseContext context{environment, version, stderr_is_tty};
    const std::span<const std::string> args = arguments;
    if (const Command* const command = find_command(args)) return command->parse(args.subspan(1), context);
    return std::visit([](auto&& one) -> Parsed { return std::move(one); }, cli::parse_launch(args, context));
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

int print_to_stdout(const std::string& text) {
  if (write_shared(STDOUT_FILENO, text)) return 0;
  say_error("cannot write to the standard output");
  return exit_codes::launcher_failed;
}

cli::PrintAndExit wrong_usage(std::string_view name, std::string_view message) {
  return {concat("ddrun: error: ", message, " (see 'ddrun ", name, " --help')\n"), true, exit_codes::usage};
}

tl::expected<argv::CommandLine, cli::PrintAndExit> read_arguments(std::string_view name,
                                                                  std::span<const argv::Option> options,
                                                                  std::string (*help)(),
                                                                  std::span<const std::string> rest) {
  const std::string how = concat("ddrun ", name, " --help");
  auto read = argv::read({options, argv::Positionals::anywhere, how}, rest);
  if (!read) return tl::unexpected(cli::usage_error(read.error().message));
  if (read->action != nullptr) return tl::unexpected(cli::stdout_text(help()));
  return std::move(*read);
}

}  // namespace ddrun
