#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ddrun/base/duration.hpp"

namespace ddrun::cli {

/// `ddrun rendezvous`: run a coordinator by itself, for many jobs, until a signal ends it.
struct RendezvousServe {
  std::vector<std::string> addresses;  ///< none: all of this machine's
  std::uint16_t port = 29400;          ///< 0: any free one
  std::optional<std::string> secret_file;
  bool insecure = false;
  Milliseconds heartbeat_interval{1'000};
  int heartbeat_misses = 3;
  bool stats = false;  ///< print them at the end
};

}  // namespace ddrun::cli
