#include "ddrun/base/text.hpp"
#include "option_table.hpp"

#include "ddrun/cli/values.hpp"

// Group "Several machines": how long they wait for each other, who may join, what becomes of bad ones.

namespace ddrun::cli {

namespace {

/// "auto", or a time.
Result<void> set_fence(Draft& draft, std::string_view value) {
  if (value != "auto") return assign(draft.spec.rendezvous.fence, parse_time(value));
  draft.spec.rendezvous.fence.reset();
  return {};
}

/// etcd's own bound is whole seconds, and below two there is no room to renew a lease.
Result<Milliseconds> parse_lease_ttl(std::string_view text) {
  auto time = parse_time(text);
  if (time && (*time < std::chrono::seconds(2) || time->count() % 1000 != 0)) {
    return fail(Errc::invalid_argument, concat("'", text, "' is not a whole number of seconds from 2 on"));
  }
  return time;
}

constexpr Option several_table[] = {
    {.name = "last-call",
     .metavar = "TIME",
     .kind = Kind::duration,
     .help = "With MIN nodes there, wait so long for more before the first round",
     .set = [](Draft& d, std::string_view v) { return assign(d.spec.rendezvous.last_call, parse_time(v)); },
     .show = [](const Draft& d) { return shown(duration_text(d.spec.rendezvous.last_call)); }},
    {.name = "join-timeout",
     .metavar = "TIME",
     .kind = Kind::duration,
     .help = "Give up when not enough nodes are there after TIME",
     .set = [](Draft& d, std::string_view v) { return assign(d.spec.rendezvous.join_timeout, parse_positive_time(v)); },
     .show = [](const Draft& d) { return shown(duration_text(d.spec.rendezvous.join_timeout)); }},
    {.name = "heartbeat-interval",
     .metavar = "TIME",
     .kind = Kind::duration,
     .help = "How often the coordinator asks each agent whether it is there",
     .set = [](Draft& d,
               std::string_view v) { return assign(d.spec.rendezvous.heartbeat_interval, parse_positive_time(v)); },
     .show = [](const Draft& d) { return shown(duration_text(d.spec.rendezvous.heartbeat_interval)); }},
    {.name = "heartbeat-misses",
     .metavar = "N",
     .kind = Kind::integer,
     .help = "A node that is silent for N intervals is lost",
     .set = [](Draft& d,
               std::string_view v) { return assign(d.spec.rendezvous.heartbeat_misses, parse_int(v, 1, 10'000)); },
     .show = [](const Draft& d) { return shown(d.spec.rendezvous.heartbeat_misses); }},
    {.name = "coordinator-timeout",
     .metavar = "TIME",
     .kind = Kind::duration,
     .help = "A node that no longer hears the coordinator stops its workers, and looks for it so long",
     .set = [](Draft& d, std::string_view v) { return assign(d.spec.rendezvous.coordinator_timeout, parse_time(v)); },
     .show = [](const Draft& d) { return shown(duration_text(d.spec.rendezvous.coordinator_timeout)); }},
    {.name = "rdzv-lease",
     .metavar = "COMMAND",
     .kind = Kind::text,
     .help =
         "A program that decides which machine runs the coordinator, as --rdzv-backend=etcd does; another one takes "
         "over when that is lost",
     .set = [](Draft& d,
               std::string_view v) { return assign(d.spec.rendezvous.lease, Result<std::string>(std::string(v))); },
     .show = [](const Draft& d) { return shown(d.spec.rendezvous.lease); }},
    {.name = "lease-ttl",
     .metavar = "TIME",
     .kind = Kind::duration,
     .help = "With etcd or a lease: a coordinator that is silent for so long is followed by another one",
     .set = [](Draft& d, std::string_view v) { return assign(d.spec.rendezvous.lease_ttl, parse_lease_ttl(v)); },
     .show = [](const Draft& d) { return shown(duration_text(d.spec.rendezvous.lease_ttl)); }},
    {.name = "fence",
     .metavar = "TIME",
     .kind = Kind::duration,
     .help =
         "After the loss of a node, from its last sign of life, wait so long before the next round; auto: while its "
         "workers may still run",
     .set = set_fence,
     .show =
         [](const Draft& d) {
           const auto& fence = d.spec.rendezvous.fence;
           return shown(fence ? duration_text(*fence) : std::string("auto"));
         }},
    {.name = "node-max-failures",
     .metavar = "N",
     .kind = Kind::integer,
     .help = "Leave a host out once its workers have failed N times; 0: never",
     .set = [](Draft& d,
               std::string_view v) { return assign(d.spec.rendezvous.node_max_failures, parse_int(v, 0, 1'000'000)); },
     .show = [](const Draft& d) { return shown(d.spec.rendezvous.node_max_failures); }},
    {.name = "secret-file",
     .metavar = "FILE",
     .kind = Kind::file,
     .help =
         "The job's secret, the same on all machines; without it $DDRUN_SECRET, or ~/.config/ddrun/secret, which the "
         "first agent makes",
     .set = [](Draft& d, std::string_view v) { return assign(d.spec.rendezvous.secret_file, parse_non_empty(v)); },
     .show = [](const Draft& d) { return shown(d.spec.rendezvous.secret_file); }},
    {.name = "insecure",
     .kind = Kind::flag,
     .help = "No secret: whoever reaches the coordinator's port may join the job",
     .set = [](Draft& d, std::string_view v) { return assign(d.spec.rendezvous.insecure, parse_bool(v)); },
     .show = [](const Draft& d) { return shown(d.spec.rendezvous.insecure); }},
};

}  // namespace

std::span<const Option> several_options() { return several_table; }

}  // namespace ddrun::cli
