#include "split_endpoint.hpp"

namespace ddrun::rendezvous {

HostPort split_endpoint(const std::string& endpoint) {
  if (endpoint.starts_with('[')) {
    const std::size_t close = endpoint.find(']');
    if (close != std::string::npos) {
      const std::string rest = endpoint.substr(close + 1);
      if (rest.empty() || rest.starts_with(':')) {
        return {endpoint.substr(1, close - 1), rest.empty() ? rest : rest.substr(1)};
      }
    }
  }
  const std::size_t colon = endpoint.find(':');
  if (colon == std::string::npos || endpoint.find(':', colon + 1) != std::string::npos) return {endpoint, ""};
  return {endpoint.substr(0, colon), endpoint.substr(colon + 1)};
}

}  // namespace ddrun::rendezvous
