#pragma once

#include <string>

#include "ddrun/etcd/etcd_lease.hpp"

namespace ddrun::etcd {

struct ServeResult {
  int status = 0;   ///< 0: at the end of its input; 1: etcd cannot be used; 2: what was said is not in the protocol
  std::string why;  ///< a sentence, for people; empty if all went well
};

/// The other side of lease::make_program_lease(): hears the lines of lib/lease/PROTOCOL.md from `in`, has a lease in
/// etcd for whoever says them, and answers to `out`. Returns when it is over, with the lease given back if that could
/// be done within its time to live. Neither descriptor is closed.
[[nodiscard]] ServeResult serve(const EtcdOptions& etcd, int in, int out);

}  // namespace ddrun::etcd
