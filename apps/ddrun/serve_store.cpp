#include <string>

#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/process/descriptor_limit.hpp"
#include "ddrun/store/tcp_server.hpp"
#include "serving.hpp"
#include "store_command.hpp"

using namespace ddrun;

namespace {

/// A line for each figure, "name number", the requests by their names.
std::string stats_text(const store::TcpServerStats& stats) {
  std::string text;
  const auto line = [&](std::string_view name, std::uint64_t number) { text += stats_line(name, number); };
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

}  // namespace

int serve_store(const cli::StoreServe& command) {
  Serving serving;
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
  return serving.run((*server)->addresses(),
                     command.stats ? [&] { return stats_text((*server)->stats()); } : std::function<std::string()>());
}
