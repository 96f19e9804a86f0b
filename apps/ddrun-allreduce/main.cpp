// ddrun-allreduce: parses options, connects the ranks, runs the benchmark, reports.

#include <unistd.h>

#include <csignal>

#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/bench/options.hpp"
#include "ddrun/bench/rank_env.hpp"
#include "ddrun/bench/run.hpp"

using namespace ddrun;
using namespace ddrun::bench;

namespace {

int status_of(const Error& error) {
  switch (error.code) {
    case Errc::invalid_argument: return exit_usage;
    case Errc::unsupported: return exit_cannot_run_here;
    default: return exit_failed;
  }
}

int run_program(int argc, char** argv) {
  fill_closed_standard_streams();
  // A closed pipe is reported as a write error.
  std::signal(SIGPIPE, SIG_IGN);
  const Parsed parsed = parse_options(argc, argv);
  if (parsed.exit_code) return *parsed.exit_code;
  if (auto available = collectives::probe(parsed.options.backend); !available) {
    print_error(available.error().message);
    return exit_cannot_run_here;
  }
  const auto env = rank_env_from(Environment(environ));
  if (!env) {
    print_error(env.error().message);
    return exit_usage;
  }
  const auto result = run(parsed.options, *env);
  if (result) return *result;
  print_error(env->is_singleton ? result.error().message : concat("rank ", env->rank, ": ", result.error().message));
  return status_of(result.error());
}

}  // namespace

int main(int argc, char** argv) {
  const int status = run_program(argc, argv);
  // Without exit handlers, for which there is nothing to flush: all output is unbuffered.
  if (collectives::has_stuck_gpu()) ::_exit(status);
  return status;
}
