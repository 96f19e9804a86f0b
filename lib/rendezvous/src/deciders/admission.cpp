#include "admission.hpp"

#include <cstdint>
#include <utility>

#include "ddrun/base/text.hpp"
#include "membership.hpp"
#include "settings.hpp"

namespace ddrun::rendezvous {

namespace {

// With the largest number of nodes that settings allow, ranks still fit into an int.
constexpr std::uint32_t max_workers_per_node = 16'384;
/// Upper bound of a term or round that an agent may claim: there is always a next one.
constexpr std::uint64_t max_term = std::uint64_t{1} << 62U;

Rejection refuse(const std::string& why, const std::string& seen_from_here = "") {
  return {{RefusalKind::permanent, why}, seen_from_here.empty() ? why : seen_from_here};
}

Rejection other_job(std::string why, std::string seen_from_here) {
  return {{RefusalKind::other_job, std::move(why)}, std::move(seen_from_here)};
}

/// What is wrong with the agent itself.
std::optional<Rejection> check_agent(const Join& join, const JobState& job, const CoordinatorOptions& options) {
  const std::string& served = !options.job_id.empty() ? options.job_id : job.job_id;
  if (!served.empty() && join.job_id != served) {
    return other_job(concat("the coordinator on ", options.host, " serves the job ", served, ", not ", join.job_id,
                            "; give both the same --rdzv-id, or this one another endpoint"),
                     concat("--rdzv-id is ", join.job_id, " there, ", served, " here"));
  }
  if (join.claim.term > max_term || join.claim.round > max_term) {
    return refuse("no job gets to the term or round that is claimed");
  }
  if (options.term != 0 && join.claim.term > options.term) {
    return Rejection{{RefusalKind::moved, concat("the coordinator on ", options.host, " leads no more")}, ""};
  }
  if (join.agent_id.empty()) return refuse("an agent needs an id");
  if (join.host.size() > max_host_name_bytes) return refuse("the name of a host has at most 255 bytes");
  if (join.local_world_size == 0 || (join.local_world_size > max_workers_per_node && !options.single_member)) {
    return refuse(concat("a node has 1 to ", max_workers_per_node, " workers, not ", join.local_world_size));
  }
  return std::nullopt;
}

/// What differs from the job.
std::optional<Rejection> check_agreement(const Join& join, const JobState& job, const CoordinatorOptions& options) {
  if (join.version != job.version) {
    return refuse(concat("this is ddrun ", join.version, ", but the other nodes of the job run ", job.version),
                  concat("it runs ddrun ", join.version, ", and this job ", job.version));
  }
  // With explicit node ranks on both sides the command lines may differ: an agent of another job would not have a free
  // rank.
  const bool both_have_ranks = job.has_node_ranks && join.node_rank >= 0;
  if (!both_have_ranks && !same_program(job.raw_settings, join.settings)) {
    return other_job(
        concat("the coordinator on ", options.host, " serves a job that runs another program, or the same ",
               "with other arguments; give each job an --rdzv-id of its own, or another endpoint (one job ",
               "whose machines run different command lines needs an --rdzv-id, too, or another --node-rank on each)"),
        "it runs another program, or the same with other arguments (see --rdzv-id)");
  }
  const auto differences = [&](Audience audience) {
    return describe_differences(job.raw_settings, join.settings, audience);
  };
  if (const std::string different = differences(Audience::there); !different.empty()) {
    return refuse(concat("this node and those that are there do not agree: ", different), differences(Audience::here));
  }
  if (join.node_rank < -1 || join.node_rank >= job.settings.max_nodes) {
    return refuse(concat("node rank ", join.node_rank, " is not from 0 to ", job.settings.max_nodes - 1));
  }
  if (job.excluded(machine_of(join))) {
    return refuse(concat(join.host, " is left out: its workers failed ", job.settings.node_max_failures,
                         " times (--node-max-failures)"));
  }
  return std::nullopt;
}

}  // namespace

std::optional<Rejection> check_join(const Join& join, JobState& job, const CoordinatorOptions& options) {
  if (auto wrong = check_agent(join, job, options)) return wrong;
  if (job.raw_settings.empty()) {
    // If an agent runs the coordinator, its job is served, even if another agent joins first.
    const Join& first = options.own_join ? *options.own_join : join;
    const auto settings = read_settings(first.settings);
    if (!settings) return refuse(settings.error().message);
    job.adopt(first, *settings);
  }
  return check_agreement(join, job, options);
}

}  // namespace ddrun::rendezvous
