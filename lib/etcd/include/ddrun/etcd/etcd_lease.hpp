#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "ddrun/base/result.hpp"
#include "ddrun/lease/lease.hpp"

namespace ddrun::etcd {

/// etcd 3.4 or newer, through its JSON gateway. Keys are below `/ddrun/<job>/`.
struct EtcdOptions {
  std::vector<std::string> endpoints;  ///< "h1:2379", "10.0.0.1", "[fd00::1]:2379"; port 2379 if none is given
  bool tls = false;
  std::string
      cacert;        ///< PEM file of trusted CAs; empty: the system's. Read when a lease is made, as are the next two.
  std::string cert;  ///< PEM file of the client certificate and its chain; empty: none
  std::string key;   ///< PEM file with its key
  std::string user;  ///< empty: none
  std::string password;
  std::size_t candidates = 8;  ///< approximate number of candidates; spreads their attempts
};

/// A lease in etcd, held by this process. Reads the certificates; does not connect yet. Errors: `invalid_argument`,
/// with a sentence for the user.
[[nodiscard]] Result<std::shared_ptr<lease::Lease>> make_etcd_lease(const boost::asio::any_io_executor& executor,
                                                                    const lease::LeaseOptions& options,
                                                                    const EtcdOptions& etcd,
                                                                    lease::Callbacks callbacks);

}  // namespace ddrun::etcd
