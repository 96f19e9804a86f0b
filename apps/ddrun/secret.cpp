#include <signal.h>
#include <unistd.h>

#include "commands.hpp"
#include "ddrun/base/environment.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/shared_output.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/cli/parse.hpp"
#include "ddrun/rendezvous/secret.hpp"

// `ddrun secret new`.

namespace ddrun {

namespace {

constexpr argv::Option secret_options[] = {
    {"print", "", "", "Only print one, for DDRUN_SECRET, --secret-file or a Secret of Kubernetes"}, help_option};

std::string secret_help() {
  return concat(R"(Usage: ddrun secret new [--print]

Makes the secret by which the agents of a job on several machines know each
other: 256 random bits as text, in $XDG_CONFIG_HOME/ddrun/secret, else in
~/.config/ddrun/secret, where only you can read it. A file that is there already
is never overwritten. Where all machines share the home directory this is not
needed: the first job makes it. Else copy the file to each of them.
)",
                argv::describe(secret_options), R"(
Exit status: 0; 2 wrong usage, or there is one already; 125 it could not be
written. A program called secret: ddrun -- secret
)");
}

/// Blocks signals, so that none leaves a partial file.
void block_signals() {
  ::signal(SIGXFSZ, SIG_IGN);
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_BLOCK, &all, nullptr);
}

bool print_and_wipe(std::string text) {
  const bool printed = write_shared(STDOUT_FILENO, text);
  rendezvous::wipe(text);
  return printed;
}

}  // namespace

Parsed parse_secret(std::span<const std::string> rest, const cli::ParseContext& /*context*/) {
  const auto typed = read_arguments("secret", secret_options, secret_help, rest);
  if (!typed) return typed.error();
  if (typed->positionals.size() != 1 || typed->positionals.front() != "new") {
    return wrong_usage("secret",
                       "usage: ddrun secret new [--print]; for a program called secret write: ddrun -- secret");
  }
  return SecretNew{typed->has("print")};
}

int run_secret(const Parsed& parsed) {
  const auto& command = std::get<SecretNew>(parsed);
  auto text = rendezvous::new_secret_text();
  if (!text) return say_failure(text.error());
  if (command.print) return print_and_wipe(*text + "\n") ? 0 : exit_codes::launcher_failed;
  const auto path = rendezvous::secret_path(variable);
  if (!path) {
    say_error("neither XDG_CONFIG_HOME nor HOME says where to write it; see 'ddrun secret new --print'");
    return exit_codes::launcher_failed;
  }
  block_signals();
  if (auto written = rendezvous::write_new_secret(*path, *text); !written) return say_failure(written.error());
  rendezvous::wipe(*text);
  print_and_wipe(
      concat("wrote ", *path, ": machines that share it need nothing else; copy it to the others, with mode 600\n"));
  return 0;
}

}  // namespace ddrun
