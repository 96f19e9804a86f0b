#include <signal.h>
#include <unistd.h>

#include <string>

#include "ddrun/agent/exit_code_table.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/process/descriptor_limit.hpp"
#include "ddrun/store/tcp_server.hpp"
#include "store_command.hpp"

using namespace ddrun;
namespace exit_codes = agent::exit_codes;

namespace {

/// A line for each figure, "name number", the requests by their names.
std::string stats_text(const store::TcpServerStats& stats) {
  std::string text;
  const auto line = [&](std::string_view name, std::uint64_t number) { text += concat(name, ' ', number, '\n'); };
  line("keys", stats.keys);
  line("memory_bytes", stats.memory);
  line("peak_memory_bytes", stats.peak_memory);
  line("connections", stats.connections);
  line("peak_connections", stats.peak_connections);
  line("accepted", stats.accepted);
  line("refused", stats.refused);
  line("bytes_in", stats.bytes_in);
  line("bytes_out", stats.bytes_out);
  std::uint64_t total = 0;
  for (const auto& [name, count] : stats.requests) total += count;
  line("requests", total);
  for (const auto& [name, count] : stats.requests) line(concat("requests.", name), count);
  return text;
}

bool print(const std::string& text) { return write_all(STDOUT_FILENO, text.data(), text.size()); }

}  // namespace

int serve_store(const cli::StoreServe& command) {
  // Taken one by one below; the server's own thread has none of them.
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1}) {
    // What the caller ignores, as nohup does, stays ignored.
    struct sigaction action {};
    if (::sigaction(signal, nullptr, &action) != 0 || action.sa_handler != SIG_IGN) ::sigaddset(&signals, signal);
  }
  ::sigaddset(&signals, SIGPIPE);  // never waited for
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  ::sigdelset(&signals, SIGPIPE);
  process::raise_descriptor_limit();

  store::TcpServerOptions options;
  options.addresses = command.addresses;
  options.port = command.port;
  options.max_memory = command.max_memory;
  options.on_refusal = [](const std::string& text) { say(Level::warning, text); };
  const auto server = store::TcpServer::start(options);
  if (!server) {
    say_error(server.error().message);
    return server.error().code == Errc::invalid_argument ? exit_codes::usage : exit_codes::launcher_failed;
  }
  std::string greeting = "listening on";
  for (const auto& address : (*server)->addresses()) greeting += " " + address;
  if (!print(greeting + "\n")) {
    say_error("cannot write to the standard output");
    return exit_codes::launcher_failed;
  }
  bool written = true;
  for (int signal = 0;;) {
    if (::sigwait(&signals, &signal) != 0) continue;
    const bool end = signal != SIGUSR1;
    if (command.stats && (!end || written)) written = print(stats_text((*server)->stats()) + "\n") && written;
    if (end) break;
  }
  if (!written) say_error("cannot write to the standard output");
  return written ? exit_codes::success : exit_codes::launcher_failed;
}
