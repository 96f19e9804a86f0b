#include "ddrun/base/host_port.hpp"

#include "ddrun/base/text.hpp"

namespace ddrun {

std::optional<HostPort> split_host_port(std::string_view text) {
  if (text.starts_with('[')) {
    const std::size_t bracket = text.find(']');
    if (bracket == std::string_view::npos) return std::nullopt;
    const std::string host(text.substr(1, bracket - 1));
    const std::string_view rest = text.substr(bracket + 1);
    if (rest.empty()) return HostPort{host, std::nullopt};
    if (rest.front() != ':') return std::nullopt;
    return HostPort{host, std::string(rest.substr(1))};
  }
  const std::size_t colon = text.find(':');
  const bool alone = colon == std::string_view::npos || text.find(':', colon + 1) != std::string_view::npos;
  if (alone) return HostPort{std::string(text), std::nullopt};
  return HostPort{std::string(text.substr(0, colon)), std::string(text.substr(colon + 1))};
}

std::string host_port_text(std::string_view host, int port) {
  const bool v6 = host.find(':') != std::string_view::npos;
  std::string text = v6 ? concat('[', host, ']') : std::string(host);
  if (port != 0) text += concat(':', port);
  return text;
}

}  // namespace ddrun
