#include "serving.hpp"

#include <unistd.h>

#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"

using namespace ddrun;

namespace {

bool put(const std::string& text) { return write_all(STDOUT_FILENO, text.data(), text.size()); }

}  // namespace

std::string stats_line(std::string_view name, unsigned long long number) { return concat(name, ' ', number, '\n'); }

Serving::Serving() {
  ::sigemptyset(&signals_);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1}) {
    // What the caller ignores, as nohup does, stays ignored.
    struct sigaction action {};
    if (::sigaction(signal, nullptr, &action) != 0 || action.sa_handler != SIG_IGN) ::sigaddset(&signals_, signal);
  }
  ::sigaddset(&signals_, SIGPIPE);  // never waited for
  ::sigprocmask(SIG_BLOCK, &signals_, nullptr);
  ::sigdelset(&signals_, SIGPIPE);
}

int Serving::run(const std::vector<std::string>& addresses, const std::function<std::string()>& stats) {
  std::string greeting = "listening on";
  for (const auto& address : addresses) greeting += " " + address;
  if (!put(greeting + "\n")) {
    say_error("cannot write to the standard output");
    return exit_codes::launcher_failed;
  }
  bool written = true;
  for (int signal = 0;;) {
    if (::sigwait(&signals_, &signal) != 0) continue;
    const bool end = signal != SIGUSR1;
    if (stats && (!end || written)) written = put(stats() + "\n") && written;
    if (end) break;
  }
  if (!written) say_error("cannot write to the standard output");
  return written ? exit_codes::success : exit_codes::launcher_failed;
}
