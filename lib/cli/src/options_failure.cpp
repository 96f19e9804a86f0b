#include "option_table.hpp"

#include "ddrun/cli/values.hpp"

// Group "Failure, restart and the end": what happens when a worker fails, and how the job stops.

namespace ddrun::cli {

namespace {

Shown shown_duration(const std::optional<Milliseconds>& duration) {
  return duration ? shown(duration_text(*duration)) : Shown{};
}

Result<void> set_signals(Draft& draft, std::string_view value) {
  return assign(draft.spec.stop.ending_signals, parse_signals(value));
}

constexpr Option failure_table[] = {
    {.name = "max-restarts",
     .metavar = "N",
     .kind = Kind::integer,
     .pet = true,
     .help = "Start the whole group again up to N times after a failure",
     .set = [](Draft& d,
               std::string_view v) { return assign(d.spec.restart.max_restarts, parse_int(v, 0, 1'000'000)); },
     .show = [](const Draft& d) { return shown(d.spec.restart.max_restarts); }},
    {.name = "restart-backoff",
     .metavar = "TIME",
     .kind = Kind::duration,
     .help = "Pause before the first restart; doubles with each further one, up to 60 s",
     .set = [](Draft& d, std::string_view v) { return assign(d.spec.restart.backoff, parse_time(v)); },
     .show = [](const Draft& d) { return shown(duration_text(d.spec.restart.backoff)); }},
    {.name = "restart-window",
     .metavar = "TIME",
     .kind = Kind::duration,
     .help = "Count only the restarts of the last TIME against --max-restarts",
     .set = [](Draft& d, std::string_view v) { return assign(d.spec.restart.window, parse_positive_time(v)); },
     .show = [](const Draft& d) { return shown_duration(d.spec.restart.window); }},
    {.name = "no-restart-on",
     .metavar = "CODES",
     .kind = Kind::numbers,
     .help = "A first failure with one of these exit codes ends the job: 2,64-78",
     .set =
         [](Draft& d, std::string_view v) {
           return assign(d.spec.restart.no_restart_on, parse_number_set(v, 255, "an exit code"));
         },
     .show = [](const Draft& d) { return shown(number_set_text(d.spec.restart.no_restart_on)); }},
    {.name = "success-on",
     .metavar = "CODES",
     .kind = Kind::numbers,
     .help = "Exit codes of workers that count as success",
     .set =
         [](Draft& d, std::string_view v) {
           return assign(d.spec.restart.success_on, parse_number_set(v, 255, "an exit code"));
         },
     .show = [](const Draft& d) { return shown(number_set_text(d.spec.restart.success_on)); }},
    {.name = "timeout",
     .metavar = "TIME",
     .kind = Kind::duration,
     .help = "End the whole job after TIME (30, 90s, 20m, 1h30m), with exit status 124",
     .set = [](Draft& d, std::string_view v) { return assign(d.spec.timeout, parse_positive_time(v)); },
     .show = [](const Draft& d) { return shown_duration(d.spec.timeout); }},
    {.name = "shutdown-timeout",
     .metavar = "TIME",
     .kind = Kind::duration,
     .pet = true,
     .other_variable = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
     .help = "From the first signal to a worker until SIGKILL",
     .set = [](Draft& d, std::string_view v) { return assign(d.spec.stop.grace, parse_time(v)); },
     .show = [](const Draft& d) { return shown(duration_text(d.spec.stop.grace)); }},
    {.name = "signals-to-handle",
     .metavar = "NAMES",
     .kind = Kind::names,
     .pet = true,
     .help = "Signals that end the job in order; others are passed on to the workers and the job goes on",
     .set = set_signals,
     .show = [](const Draft& d) { return Shown{signals_text(d.spec.stop.ending_signals)}; }},
    {.name = "exit-skew",
     .metavar = "TIME",
     .kind = Kind::duration,
     .help = "Workers may run so long after the first has ended well, then the job ends with status 124",
     .set = [](Draft& d, std::string_view v) { return assign(d.spec.exit_skew, parse_positive_time(v)); },
     .show = [](const Draft& d) { return shown_duration(d.spec.exit_skew); }},
    {.name = "events",
     .metavar = "FILE",
     .kind = Kind::file,
     .help = "Append a line of JSON to FILE for each event of the job: round, restart, node lost, verdict",
     .set = [](Draft& d, std::string_view v) { return assign(d.spec.events_file, parse_non_empty(v)); },
     .show = [](const Draft& d) { return shown(d.spec.events_file); }},
    {.name = "report",
     .metavar = "FILE",
     .kind = Kind::file,
     .help = "Write how every worker of every attempt ended to FILE, as JSON",
     .set = [](Draft& d, std::string_view v) { return assign(d.spec.report_file, parse_non_empty(v)); },
     .show = [](const Draft& d) { return shown(d.spec.report_file); }},
};

}  // namespace

std::span<const Option> failure_options() { return failure_table; }

}  // namespace ddrun::cli
