#include <signal.h>
#include <unistd.h>

#include "ddrun/agent/exit_code_table.hpp"
#include "ddrun/base/environment.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/rendezvous/secret.hpp"
#include "secret_command.hpp"

using namespace ddrun;

namespace {

int refuse(const Error& error) {
  say_error(error.message);
  return agent::exit_code(error.code);
}

/// No signal may leave half a file.
void hold_signals() {
  ::signal(SIGXFSZ, SIG_IGN);
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_BLOCK, &all, nullptr);
}

bool print_and_wipe(std::string text) {
  const bool printed = write_all(STDOUT_FILENO, text.data(), text.size());
  rendezvous::wipe(text);
  return printed;
}

}  // namespace

int make_secret(const cli::SecretNew& command) {
  auto text = rendezvous::new_secret_text();
  if (!text) return refuse(text.error());
  if (command.print) return print_and_wipe(*text + "\n") ? 0 : exit_codes::launcher_failed;
  const auto path = rendezvous::secret_path(variable);
  if (!path) {
    say_error("neither XDG_CONFIG_HOME nor HOME says where to write it; see 'ddrun secret new --print'");
    return exit_codes::launcher_failed;
  }
  hold_signals();
  if (auto written = rendezvous::write_new_secret(*path, *text); !written) return refuse(written.error());
  rendezvous::wipe(*text);
  print_and_wipe(
      concat("wrote ", *path, ": machines that share it need nothing else; copy it to the others, with mode 600\n"));
  return 0;
}
