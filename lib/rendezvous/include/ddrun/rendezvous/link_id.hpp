#pragma once

#include <cstdint>

#include "ddrun/base/ip_address.hpp"

namespace ddrun::rendezvous {

/// Connection number assigned by the transport; never reused.
using LinkId = std::uint64_t;

/// Addresses of a connection, known to the transport.
struct LinkAddresses {
  IpAddress peer_address;   ///< remote
  IpAddress local_address;  ///< local
};

}  // namespace ddrun::rendezvous
