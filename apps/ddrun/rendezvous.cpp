#include <string>

#include "commands.hpp"
#include "ddrun/base/environment.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/cli/parse.hpp"
#include "ddrun/cli/values.hpp"
#include "ddrun/process/descriptor_limit.hpp"
#include "ddrun/rendezvous/coordinator_server.hpp"
#include "ddrun/rendezvous/find_coordinator.hpp"
#include "ddrun/rendezvous/secret.hpp"
#include "serving.hpp"

// `ddrun rendezvous`: serves a coordinator until a signal.

namespace ddrun {

namespace {

constexpr argv::Option rendezvous_options[] = {
    {"port", "", "N", "Port; 0 takes a free one (default: 29400)"},
    {"bind", "", "ADDRESS", "IP address to listen on, several times for more (default: all of this machine's)"},
    {"secret-file", "", "FILE",
     "The secret that agents must know; without it $DDRUN_SECRET or ~/.config/ddrun/secret, which is made if missing"},
    {"insecure", "", "", "Without a secret: any host that reaches the port may join any job"},
    {"heartbeat-interval", "", "TIME", "How often each agent is pinged (default: 1s)"},
    {"heartbeat-misses", "", "N", "Silent for so many intervals: lost (default: 3)"},
    {"stats", "", "", "Print what was served at the end, and for each SIGUSR1"},
    help_option};

std::string rendezvous_help() {
  return concat(R"(Usage: ddrun rendezvous [--port=N] [--bind=ADDRESS]... [--stats] [options]

Runs the coordinator of jobs on several machines by itself, until SIGINT or
SIGTERM ends it: for many jobs, each with its --rdzv-id, which come and go.
Jobs name it with --rdzv-endpoint=HOST:PORT, and those on its own machine say
--rdzv-conf=is_host=0 as well. Without it one ddrun of each job is its
coordinator. It says where it listens on its standard output. A job whose
coordinator ends, ends.
)",
                argv::describe(rendezvous_options), R"(
Exit status: 0; 2 wrong usage, or no secret; 125 it could not listen. A program
called rendezvous: ddrun -- rendezvous

Example:
  ddrun rendezvous --port=29400 &
  ddrun --nnodes=2 --rdzv-id=job7 --rdzv-endpoint=node0:29400 ./train
)");
}

std::string stats_text(const rendezvous::CoordinatorServerStats& stats) {
  return stats_line("jobs", stats.jobs) + stats_line("agents", stats.agents) +
         stats_line("peak_agents", stats.peak_agents) + stats_line("greeting", stats.newcomers) +
         stats_line("accepted", stats.accepted) + stats_line("joined", stats.joined) +
         stats_line("strangers", stats.foreign_protocol) + stats_line("other_versions", stats.other_versions) +
         stats_line("wrong_secrets", stats.wrong_secrets) + stats_line("too_slow", stats.timed_out) +
         stats_line("turned_away", stats.rejected) + stats_line("cut_off", stats.cut_off) +
         stats_line("messages_in", stats.messages_in) + stats_line("messages_out", stats.messages_out) +
         stats_line("bytes_in", stats.bytes_in) + stats_line("bytes_out", stats.bytes_out);
}

}  // namespace

Parsed parse_rendezvous(std::span<const std::string> rest, const cli::ParseContext& context) {
  const auto typed = read_arguments("rendezvous", rendezvous_options, rendezvous_help, rest);
  if (!typed) return typed.error();
  if (!typed->positionals.empty()) {
    return wrong_usage("rendezvous", concat("ddrun rendezvous does not know '", typed->positionals.front(),
                                            "'; for a program called rendezvous write: ddrun -- rendezvous"));
  }
  RendezvousServe serve;
  const auto port = [](const std::string& text) { return parse_port(text, 0); };
  const auto misses = [](const std::string& text) { return cli::parse_int(text, 1, 10'000); };
  const auto read = typed->read("port", serve.port, port)
                        .and_then([&] {
                          return typed->read("heartbeat-interval", serve.heartbeat_interval, cli::parse_positive_time);
                        })
                        .and_then([&] { return typed->read("heartbeat-misses", serve.heartbeat_misses, misses); });
  if (!read) return wrong_usage("rendezvous", read.error().message);
  if (typed->has("bind")) serve.addresses = typed->values("bind");
  serve.insecure = typed->has("insecure");
  serve.stats = typed->has("stats");
  if (typed->has("secret-file")) {
    serve.secret_file = typed->last("secret-file");
  } else if (const auto file = context.environment.get("DDRUN_SECRET_FILE")) {
    if (!serve.insecure) serve.secret_file = std::string(*file);
  }
  if (serve.insecure && serve.secret_file)
    return wrong_usage("rendezvous", "--insecure means without a secret; leave out --secret-file");
  return serve;
}

int run_rendezvous(const Parsed& parsed) {
  const auto& command = std::get<RendezvousServe>(parsed);
  Serving serving;
  process::raise_descriptor_limit();
  rendezvous::CoordinatorServerOptions options;
  options.addresses = command.addresses;
  options.ports = {command.port};
  options.many_jobs = true;
  options.coordinator.host = rendezvous::this_machine().host_name;
  options.coordinator.heartbeat_interval = command.heartbeat_interval;
  options.coordinator.heartbeat_misses = command.heartbeat_misses;
  options.on_notice = serving.warn();
  std::optional<rendezvous::FoundSecret> found;
  if (!command.insecure) {
    RendezvousSpec spec;
    spec.secret_file = command.secret_file;
    auto secret = rendezvous::find_or_make_secret(spec, variable);
    if (!secret) return say_failure(secret.error());
    found = std::move(*secret);
    if (found->is_new) say(Level::notice, rendezvous::new_secret_message(found->file));
    if (!found->secret.looks_strong()) say(Level::warning, rendezvous::weak_secret_message());
    options.secret.emplace(found->secret.bytes());
    options.secret_file = found->file;
  }
  const auto server = rendezvous::CoordinatorServer::start(options);
  if (!server) return say_failure(server.error());
  found.reset();
  return serving.run((*server)->addresses(),
                     command.stats ? [&] { return stats_text((*server)->stats()); } : std::function<std::string()>());
}

}  // namespace ddrun
