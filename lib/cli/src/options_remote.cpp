#include "ddrun/base/text.hpp"
#include "option_table.hpp"

#include "ddrun/cli/values.hpp"

// Group "Other machines, through ssh": which, how they are reached, what goes with the job.

namespace ddrun::cli {

namespace {

/// NAME, or NAME=VALUE.
Result<void> add_exported(Draft& draft, std::string_view value) {
  const std::string_view name = value.substr(0, value.find('='));
  if (name.empty()) return fail(Errc::invalid_argument, concat("'", value, "' is neither NAME nor NAME=VALUE"));
  draft.spec.remote.exported.emplace_back(value);
  return {};
}

constexpr Option remote_table[] = {
    {.name = "hosts",
     .metavar = "LIST",
     .kind = Kind::names,
     .help = "Start the job on these hosts, through ssh: HOST or HOST:WORKERS, separated by commas",
     .set = [](Draft& d, std::string_view v) { return assign(d.spec.remote.hosts, parse_non_empty(v)); },
     .show = [](const Draft& d) { return d.spec.remote.hosts.empty() ? Shown{} : shown(d.spec.remote.hosts); }},
    {.name = "hostfile",
     .metavar = "FILE",
     .kind = Kind::file,
     .help = "The same from a file, one host on a line, in the form of Open MPI, MPICH, PBS, LSF or SGE",
     .set = [](Draft& d, std::string_view v) { return assign(d.spec.remote.hostfile, parse_non_empty(v)); },
     .show = [](const Draft& d) { return shown(d.spec.remote.hostfile); }},
    {.name = "export",
     .shorts = "x",
     .metavar = "NAME[=VALUE]",
     .kind = Kind::assignments,
     .help = "Set a variable for the workers, on all hosts, to VALUE or to what it is here; may be repeated",
     .set = add_exported,
     .show = [](const Draft& d) { return d.spec.remote.exported; }},
    {.name = "ssh",
     .metavar = "COMMAND",
     .kind = Kind::text,
     .help = "Reach the hosts by this command, such as 'ssh -F file'",
     .set = [](Draft& d, std::string_view v) { return assign(d.spec.remote.ssh, parse_non_empty(v)); },
     .show = [](const Draft& d) { return shown(d.spec.remote.ssh); }},
};

}  // namespace

std::span<const Option> remote_options() { return remote_table; }

}  // namespace ddrun::cli
