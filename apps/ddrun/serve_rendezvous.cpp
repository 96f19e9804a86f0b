#include "ddrun/agent/exit_code_table.hpp"
#include "ddrun/base/environment.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/process/descriptor_limit.hpp"
#include "ddrun/rendezvous/coordinator_place.hpp"
#include "ddrun/rendezvous/coordinator_server.hpp"
#include "ddrun/rendezvous/secret.hpp"
#include "rendezvous_command.hpp"
#include "serving.hpp"

using namespace ddrun;

namespace {

std::string stats_text(const rendezvous::CoordinatorServerStats& stats) {
  return stats_line("jobs", stats.jobs) + stats_line("agents", stats.agents) +
         stats_line("peak_agents", stats.peak_agents) + stats_line("greeting", stats.greeting) +
         stats_line("accepted", stats.accepted) + stats_line("joined", stats.joined) +
         stats_line("strangers", stats.strangers) + stats_line("other_versions", stats.other_versions) +
         stats_line("wrong_secrets", stats.wrong_secrets) + stats_line("too_slow", stats.too_slow) +
         stats_line("turned_away", stats.turned_away) + stats_line("cut_off", stats.cut_off) +
         stats_line("messages_in", stats.messages_in) + stats_line("messages_out", stats.messages_out) +
         stats_line("bytes_in", stats.bytes_in) + stats_line("bytes_out", stats.bytes_out);
}

int refuse(const std::string& message, int code) {
  say_error(message);
  return code;
}

}  // namespace

int serve_rendezvous(const cli::RendezvousServe& command) {
  Serving serving;
  process::raise_descriptor_limit();
  rendezvous::CoordinatorServerOptions options;
  options.addresses = command.addresses;
  options.ports = {command.port};
  options.many_jobs = true;
  options.coordinator.host = rendezvous::this_machine().host_name;
  options.coordinator.heartbeat_interval = command.heartbeat_interval;
  options.coordinator.heartbeat_misses = command.heartbeat_misses;
  options.on_notice = [](const std::string& text) { say(Level::warning, text); };
  std::optional<rendezvous::Secret> secret;
  if (!command.insecure) {
    RendezvousSpec spec;
    spec.secret_file = command.secret_file;
    auto found = rendezvous::find_secret(spec, variable);
    if (!found) return refuse(found.error().message, agent::exit_code(found.error().code));
    if (!*found) return refuse(rendezvous::no_secret_message(), exit_codes::usage);
    secret = std::move(*found);
    options.secret = secret->bytes();
  }
  const auto server = rendezvous::CoordinatorServer::start(options);
  if (!server) return refuse(server.error().message, agent::exit_code(server.error().code));
  secret.reset();
  return serving.run((*server)->addresses(),
                     command.stats ? [&] { return stats_text((*server)->stats()); } : std::function<std::string()>());
}
