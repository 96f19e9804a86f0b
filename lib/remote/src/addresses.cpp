#include "addresses.hpp"

#include <algorithm>

#include "ddrun/base/ip_address.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::remote {

std::vector<std::string> addresses_for_others(std::string_view ssh_connection) {
  std::vector<IpAddress> found;
  const auto words = split(ssh_connection, ' ');
  if (words.size() == 4) {
    if (const auto reached = IpAddress::parse(words[2]); reached && !reached->is_link_local())
      found.push_back(*reached);
  }
  for (const IpAddress& own : own_addresses()) {
    if (!own.is_link_local() && std::find(found.begin(), found.end(), own) == found.end()) found.push_back(own);
  }
  std::stable_partition(found.begin(), found.end(), [](const IpAddress& address) { return !address.is_loopback(); });
  std::vector<std::string> texts;
  for (const IpAddress& address : found) texts.push_back(address.text());
  return texts;
}

}  // namespace ddrun::remote
