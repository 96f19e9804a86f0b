#include "ddrun/lease/lease.hpp"

#include <utility>

#include "ddrun/base/text.hpp"
#include "etcd_lease.hpp"
#include "program_lease.hpp"

namespace ddrun::lease {

namespace {

constexpr std::size_t longest_job = 512;

}  // namespace

Result<std::shared_ptr<Lease>> make_lease(const boost::asio::any_io_executor& executor, LeaseOptions options,
                                          Callbacks callbacks) {
  if (options.job.empty() || options.job.size() > longest_job) {
    return fail(Errc::invalid_argument, concat("a job's id has 1 to ", longest_job, " bytes"));
  }
  if (options.ttl < shortest_ttl || options.ttl.count() % 1000 != 0) {
    return fail(Errc::invalid_argument,
                concat("a lease's time to live is ", duration_text(shortest_ttl),
                       " seconds or more, and whole seconds, not ", duration_text(options.ttl)));
  }
  if (const auto* etcd = std::get_if<EtcdOptions>(&options.engine)) {
    return make_etcd_lease(executor, options, *etcd, std::move(callbacks));
  }
  return make_program_lease(executor, options, std::get<ProgramOptions>(options.engine), std::move(callbacks));
}

}  // namespace ddrun::lease
