#include "secret_words.hpp"

#include "cli11_values.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::cli {

namespace {

constexpr std::string_view help =
    R"(Usage: ddrun secret new [--print]

Makes the secret by which the agents of a job on several machines know each
other: 256 random bits as text, in $XDG_CONFIG_HOME/ddrun/secret, else in
~/.config/ddrun/secret, where only you can read it. A file that is there already
is never overwritten. Where all machines share the home directory nothing else
is needed, ever; else copy the file to each of them.
  --print             Only print one, for DDRUN_SECRET, --secret-file or a
                      Secret of Kubernetes

Exit status: 0; 2 wrong usage, or there is one already; 125 it could not be
written. A program called secret: ddrun -- secret
)";

PrintAndExit wrong(std::string_view message) {
  return {concat("ddrun: error: ", message, " (see 'ddrun secret --help')\n"), true, exit_codes::usage};
}

constexpr PlainOption secret_words[] = {{"--print", false}};

}  // namespace

Parsed parse_secret(std::span<const std::string> words) {
  for (const auto& word : words) {
    if (word == "--help" || word == "-h") return PrintAndExit{std::string(help), false, 0};
  }
  const auto typed = read_plain(secret_words, words);
  if (!typed) return wrong(concat("ddrun secret: ", typed.error().message));
  if (typed->words.size() != 1 || typed->words.front() != "new") {
    return wrong("usage: ddrun secret new [--print]; for a program called secret write: ddrun -- secret");
  }
  return SecretNew{typed->has("--print")};
}

}  // namespace ddrun::cli
