// ddrun-allreduce: parse, find the other ranks, run the sizes, report.

#include <unistd.h>

#include <csignal>

#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/bench/options.hpp"
#include "ddrun/bench/place.hpp"
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

}  // namespace

int main(int argc, char** argv) {
  hold_standard_streams();
  // A reader that has gone is an error of writing, with words.
  std::signal(SIGPIPE, SIG_IGN);
  const Parsed parsed = parse_options(argc, argv);
  if (parsed.exit_code) return *parsed.exit_code;
  if (auto there = collectives::probe(parsed.options.backend); !there) {
    say_error(there.error().message);
    return exit_cannot_run_here;
  }
  const auto place = place_from(Environment(environ));
  if (!place) {
    say_error(place.error().message);
    return exit_usage;
  }
  const auto result = run(parsed.options, *place);
  if (result) return *result;
  say_error(place->alone ? result.error().message : concat("rank ", place->rank, ": ", result.error().message));
  return status_of(result.error());
}
