#include "option_table.hpp"

#include "ddrun/cli/values.hpp"

// Groups "Workers" and "Program": how many, what they run, what they are given.

namespace ddrun::cli {

namespace {

const char* bind_text(BindMode mode) {
  switch (mode) {
    case BindMode::cores: return "cores";
    case BindMode::numa: return "numa";
    case BindMode::none: break;
  }
  return "none";
}

Result<void> set_bind(Draft& draft, std::string_view value) {
  const auto word = parse_choice(value, "none cores numa");
  if (!word) return tl::unexpected<Error>(word.error());
  draft.spec.bind = *word == "cores" ? BindMode::cores : *word == "numa" ? BindMode::numa : BindMode::none;
  return {};
}

Result<void> add_variable(Draft& draft, std::string_view value) {
  auto pair = parse_assignment(value);
  if (!pair) return tl::unexpected<Error>(std::move(pair.error()));
  for (auto& [name, old] : draft.spec.env) {
    if (name == pair->first) {
      old = std::move(pair->second);
      return {};
    }
  }
  draft.spec.env.push_back(std::move(*pair));
  return {};
}

Shown show_variables(const Draft& draft) {
  Shown all;
  for (const auto& [name, value] : draft.spec.env) all.push_back(name + "=" + value);
  return all;
}

std::string stdin_text(const StdinSpec& spec) {
  switch (spec.kind) {
    case StdinSpec::Kind::all: return "all";
    case StdinSpec::Kind::none: return "none";
    case StdinSpec::Kind::rank: break;
  }
  return std::to_string(spec.rank);
}

constexpr Option workers_table[] = {
    {.name = "nproc-per-node",
     .shorts = "n",
     .metavar = "N",
     .choices = "auto cpu gpu",
     .kind = Kind::word_or_int,
     .pet = true,
     .help = "Workers on this machine: a number, cpu (one per usable CPU), gpu (one per GPU), or auto (gpu if there is "
             "one, else cpu). -np is the same",
     .set = [](Draft& d, std::string_view v) { return assign(d.spec.nproc, parse_nproc(v)); },
     .show = [](const Draft& d) { return shown(nproc_text(d.spec.nproc)); }},
    {.name = "role",
     .metavar = "NAME",
     .kind = Kind::text,
     .pet = true,
     .help = "Name of the workers' role, for ROLE_NAME and log prefixes",
     .set = [](Draft& d, std::string_view v) { return assign(d.spec.role, Result<std::string>(std::string(v))); },
     .show = [](const Draft& d) { return Shown{d.spec.role}; }},
    {.name = "stdin",
     .metavar = "RANK",
     .choices = "all none",
     .kind = Kind::word_or_int,
     .help = "Who reads ddrun's standard input: one rank, all or none; the others read end of file",
     .set = [](Draft& d, std::string_view v) { return assign(d.spec.stdin_, parse_stdin(v)); },
     .show = [](const Draft& d) { return shown(stdin_text(d.spec.stdin_)); }},
    {.name = "env",
     .metavar = "NAME=VALUE",
     .kind = Kind::assignments,
     .help = "Set a variable for the workers; may be repeated",
     .set = add_variable,
     .show = show_variables},
    {.name = "chdir",
     .metavar = "DIR",
     .kind = Kind::directory,
     .help = "Start the workers in DIR",
     .set = [](Draft& d, std::string_view v) { return assign(d.spec.chdir, parse_non_empty(v)); },
     .show = [](const Draft& d) { return shown(d.spec.chdir); }},
    {.name = "seed",
     .metavar = "N",
     .kind = Kind::word_or_int,
     .help = "Give each worker DDRUN_SEED, a number mixed from N and its rank",
     .set = [](Draft& d, std::string_view v) { return assign(d.spec.seed, parse_seed(v)); },
     .show = [](const Draft& d) { return d.spec.seed ? shown(std::to_string(*d.spec.seed)) : Shown{}; }},
    {.name = "bind",
     .metavar = "HOW",
     .choices = "none cores numa",
     .kind = Kind::choice,
     .help = "Bind workers to CPUs: none, cores (an equal share of the cores each) or numa (the CPUs of one NUMA node "
             "each)",
     .set = set_bind,
     .show = [](const Draft& d) { return shown(bind_text(d.spec.bind)); }},
    {.name = "report-bindings",
     .kind = Kind::flag,
     .help = "Say which CPUs each worker was bound to",
     .set = [](Draft& d, std::string_view v) { return assign(d.spec.report_bindings, parse_bool(v)); },
     .show = [](const Draft& d) { return shown(d.spec.report_bindings); }},
    {.name = "virtual-local-rank",
     .kind = Kind::flag,
     .pet = true,
     .help = "Every worker sees LOCAL_RANK=0 and only its own GPU",
     .set = [](Draft& d, std::string_view v) { return assign(d.spec.virtual_local_rank, parse_bool(v)); },
     .show = [](const Draft& d) { return shown(d.spec.virtual_local_rank); }},
};

constexpr Option program_table[] = {
    {.name = "module",
     .shorts = "m",
     .kind = Kind::flag,
     .pet = true,
     .help = "The program is a Python module, run as 'python -m'",
     .set = [](Draft& d, std::string_view v) { return assign(d.module, parse_bool(v)); },
     .show = [](const Draft& d) { return shown(d.module); }},
    {.name = "no-python",
     .kind = Kind::flag,
     .pet = true,
     .help = "Execute the program itself, also if its name ends in .py",
     .set = [](Draft& d, std::string_view v) { return assign(d.no_python, parse_bool(v)); },
     .show = [](const Draft& d) { return shown(d.no_python); }},
    {.name = "run-path",
     .kind = Kind::flag,
     .pet = true,
     .help = "Run the program with Python, whatever its name, record its exception, and let workers that have returned "
             "wait for each other; wins over -m and --no-python",
     .set = [](Draft& d, std::string_view v) { return assign(d.run_path, parse_bool(v)); },
     .show = [](const Draft& d) { return shown(d.run_path); }},
};

}  // namespace

std::span<const Option> worker_options() { return workers_table; }
std::span<const Option> program_options() { return program_table; }

}  // namespace ddrun::cli
