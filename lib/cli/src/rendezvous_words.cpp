#include "rendezvous_words.hpp"

#include "cli11_values.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/text.hpp"
#include "values.hpp"

namespace ddrun::cli {

namespace {

constexpr std::string_view help =
    R"(Usage: ddrun rendezvous [--port=N] [--bind=ADDRESS]... [--stats] [options]

Runs the coordinator of jobs on several machines by itself, until SIGINT or
SIGTERM ends it: for many jobs, told apart by their --rdzv-id, which come and go.
Jobs name it with --rdzv-endpoint=HOST:PORT, and those on its own machine say
--rdzv-conf=is_host=0 as well. Without it one ddrun of each job is its
coordinator. It says where it listens on its standard output. A job whose
coordinator ends, ends.
  --port=N            Port; 0 takes a free one (default: 29400)
  --bind=ADDRESS      IP address to listen on, several times for more (default:
                      all of this machine's)
  --secret-file=FILE  The secret that agents must know; without it $DDRUN_SECRET
                      or the file of ddrun secret new
  --insecure          Without a secret: whoever reaches the port may join any job
  --heartbeat-interval=TIME
                      How often each agent is pinged (default: 1s)
  --heartbeat-misses=N
                      Silent for so many intervals: lost (default: 3)
  --stats             Print what was served at the end, and for each SIGUSR1

Exit status: 0; 2 wrong usage, or no secret; 125 it could not listen. A program
called rendezvous: ddrun -- rendezvous

Example:
  ddrun rendezvous --port=29400 &
  ddrun --nnodes=2 --rdzv-id=job7 --rdzv-endpoint=node0:29400 ./train
)";

PrintAndExit wrong(std::string_view message) {
  return {concat("ddrun: error: ", message, " (see 'ddrun rendezvous --help')\n"), true, exit_codes::usage};
}

constexpr PlainOption rendezvous_words[] = {{"--port", true},
                                            {"--bind", true},
                                            {"--stats", false},
                                            {"--secret-file", true},
                                            {"--insecure", false},
                                            {"--heartbeat-interval", true},
                                            {"--heartbeat-misses", true}};

}  // namespace

Parsed parse_rendezvous(std::span<const std::string> words, const Environment& environment) {
  for (const auto& word : words) {
    if (word == "--help" || word == "-h") return PrintAndExit{std::string(help), false, 0};
  }
  const auto typed = read_plain(rendezvous_words, words);
  if (!typed) return wrong(concat("ddrun rendezvous: ", typed.error().message));
  if (!typed->words.empty()) {
    return wrong(concat("ddrun rendezvous does not know '", typed->words.front(),
                        "'; for a program called rendezvous write: ddrun -- rendezvous"));
  }
  RendezvousServe serve;
  if (typed->has("--port")) {
    const auto port = parse_int(typed->last("--port"), 0, 65535);
    if (!port) return wrong(concat("--port: port ", port.error().message));
    serve.port = static_cast<std::uint16_t>(*port);
  }
  if (typed->has("--bind")) serve.addresses = typed->values.at("--bind");
  if (typed->has("--heartbeat-interval")) {
    const auto interval = parse_positive_time(typed->last("--heartbeat-interval"));
    if (!interval) return wrong(concat("--heartbeat-interval: ", interval.error().message));
    serve.heartbeat_interval = *interval;
  }
  if (typed->has("--heartbeat-misses")) {
    const auto misses = parse_int(typed->last("--heartbeat-misses"), 1, 10'000);
    if (!misses) return wrong(concat("--heartbeat-misses: ", misses.error().message));
    serve.heartbeat_misses = *misses;
  }
  serve.insecure = typed->has("--insecure");
  serve.stats = typed->has("--stats");
  if (typed->has("--secret-file")) {
    serve.secret_file = typed->last("--secret-file");
  } else if (const auto file = environment.get("DDRUN_SECRET_FILE")) {
    if (!serve.insecure) serve.secret_file = std::string(*file);
  }
  if (serve.insecure && serve.secret_file) return wrong("--insecure means without a secret; leave out --secret-file");
  return serve;
}

}  // namespace ddrun::cli
