#include "two_level/levels.hpp"

#include <bit>

#include "ddrun/base/text.hpp"
#include "ddrun/collectives/reduction.hpp"
#include "describe.hpp"

namespace ddrun::collectives {

TwoLevelPlan plan_levels(const Costs& costs, const HostGroups& hosts) {
  const double a = costs.latency;
  const double c = costs.per_byte_reduced;
  double n = 0;
  for (const auto& ranks : hosts.hosts) n += static_cast<double>(ranks.size());
  const auto others = static_cast<double>(hosts.hosts.size()) - 1;
  const double most = hosts.most();
  const int rounds = (hosts.most() + hosts.columns() - 1) / hosts.columns();
  const double tree_steps = std::bit_width(static_cast<unsigned>(hosts.hosts.size()) - 1);

  // What has to pass the network is the same either way. A message to or from the root's host costs its handling, about
  // half a latency; what travels together is copied before and after.
  TwoLevelPlan plan;
  plan.rooted = crossover([&](double s) { return tree_steps * a + n * s * c; },
                          [&](double) { return a + (rounds * others - 1) * a / 2; });
  plan.all_to_all =
      crossover([&](double s) { return others * a + 2 * n * s * c; }, [&](double) { return others * most * a; });
  return plan;
}

std::string TwoLevelPlan::in_words() const {
  const auto both = [](std::size_t to) {
    return in_steps({{"blocks of a host together", to}, {"straight", Plan::unlimited}});
  };
  return concat(
      "all_reduce, reduce, broadcast: slices; all_gather, reduce_scatter: blocks of a host together; gather, scatter: ",
      both(rooted), "; all_to_all: ", both(all_to_all), "; send_recv: straight");
}

Result<void> Levels::across(const Call& between, Deadline deadline) const {
  auto done = column->perform(between, deadline);
  if (!done) return tl::unexpected(with_ranks(done.error(), column_ranks));
  return done;
}

std::optional<Error> Levels::trouble() const {
  if (auto known = team->trouble()) return known;
  if (column) {
    if (auto lost = column->trouble()) return with_ranks(std::move(*lost), column_ranks);
  }
  return flat ? flat->trouble() : std::nullopt;
}

DataType travelling_type(const Call& call) {
  return reduces(call.collective) ? accumulator_type(call.type) : call.type;
}

ReduceOp travelling_op(const Call& call) { return call.op == ReduceOp::avg ? ReduceOp::sum : call.op; }

}  // namespace ddrun::collectives
