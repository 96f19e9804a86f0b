#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ddrun/base/result.hpp"
#include "ddrun/lease/lease.hpp"
#include "ddrun/rendezvous/hmac.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::rendezvous {

/// The machines of --rdzv-endpoint=a,b,c, of which more than half decide who leads. PROTOCOL.md, section 11.
struct VotingOptions {
  std::vector<Endpoint> voters;
  /// Those that are this machine: this process is the first of them whose port is free, and may lead then.
  std::vector<std::size_t> mine;
  std::vector<std::string> addresses;  ///< to listen on
  std::optional<HmacKey> secret;       ///< none: --insecure
};

/// Listens for votes from start() on; where all ports are taken, as soon as one is free. Errors: as of
/// make_program_lease().
[[nodiscard]] Result<std::shared_ptr<lease::Lease>> make_voting_lease(const boost::asio::any_io_executor& executor,
                                                                      const lease::LeaseOptions& options,
                                                                      VotingOptions voting, lease::Callbacks callbacks);

}  // namespace ddrun::rendezvous
