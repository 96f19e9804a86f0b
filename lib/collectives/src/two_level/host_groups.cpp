#include "two_level/host_groups.hpp"

#include <algorithm>
#include <map>

#include "ddrun/base/text.hpp"

namespace ddrun::collectives {

HostGroups HostGroups::of(const std::vector<HostIdentity>& all) {
  HostGroups groups;
  std::map<std::string, std::size_t> known;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const std::string& place = all[rank].place;
    const std::size_t next = groups.hosts.size();
    const std::size_t host = place.empty() ? next : known.try_emplace(place, next).first->second;
    if (host == next) groups.hosts.emplace_back();
    groups.hosts[host].push_back(static_cast<int>(rank));
  }
  return groups;
}

int HostGroups::host_of(int rank) const {
  const auto has = [&](const std::vector<int>& host) { return std::binary_search(host.begin(), host.end(), rank); };
  return static_cast<int>(std::find_if(hosts.begin(), hosts.end(), has) - hosts.begin());
}

int HostGroups::local_rank_of(int rank) const {
  const std::vector<int>& host = hosts[static_cast<std::size_t>(host_of(rank))];
  return static_cast<int>(std::lower_bound(host.begin(), host.end(), rank) - host.begin());
}

int HostGroups::columns() const {
  std::size_t least = hosts.front().size();
  for (const std::vector<int>& host : hosts) least = std::min(least, host.size());
  return static_cast<int>(least);
}

std::vector<int> HostGroups::column(int local_rank) const {
  std::vector<int> ranks;
  for (const std::vector<int>& host : hosts) ranks.push_back(host[static_cast<std::size_t>(local_rank)]);
  return ranks;
}

int HostGroups::most() const {
  std::size_t most = 0;
  for (const std::vector<int>& host : hosts) most = std::max(most, host.size());
  return static_cast<int>(most);
}

std::string HostGroups::in_words() const {
  const std::string count = concat(hosts.size(), hosts.size() == 1 ? " host with " : " hosts with ");
  const std::string noun = most() == 1 ? " rank" : " ranks";
  if (columns() == most()) return concat(count, most(), noun, hosts.size() == 1 ? "" : " each");
  return concat(count, columns(), " to ", most(), noun);
}

}  // namespace ddrun::collectives
