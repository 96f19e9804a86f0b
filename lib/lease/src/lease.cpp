#include "ddrun/lease/lease.hpp"

#include "ddrun/base/text.hpp"

namespace ddrun::lease {

namespace {

constexpr std::size_t longest_job = 512;

}  // namespace

Result<void> check_options(const LeaseOptions& options) {
  if (options.job.empty() || options.job.size() > longest_job) {
    return fail(Errc::invalid_argument, concat("a job's id has 1 to ", longest_job, " bytes"));
  }
  if (options.ttl < shortest_ttl || options.ttl.count() % 1000 != 0) {
    return fail(Errc::invalid_argument,
                concat("a lease's time to live is ", duration_text(shortest_ttl),
                       " seconds or more, and whole seconds, not ", duration_text(options.ttl)));
  }
  return {};
}

}  // namespace ddrun::lease
