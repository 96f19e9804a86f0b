#include "two_level/plan.hpp"

#include <bit>

#include "ddrun/base/text.hpp"

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
    return in_steps({{"blocks of a host together", to}, {"straight", Plan::kAlways}});
  };
  return concat(
      "all_reduce, reduce, broadcast: slices; all_gather, reduce_scatter: blocks of a host together; gather, scatter: ",
      both(rooted), "; all_to_all: ", both(all_to_all), "; send_recv: straight");
}

}  // namespace ddrun::collectives
