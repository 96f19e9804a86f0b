#pragma once

#include <string>

#include "ddrun/etcd/etcd_lease.hpp"

namespace ddrun::etcd {

struct ServeResult {
  int status = 0;   ///< 0: end of input; 1: etcd is unusable; 2: invalid input
  std::string why;  ///< a sentence for the user; empty on success
};

/// The program side of lease::make_program_lease(): reads lines of lib/lease/PROTOCOL.md from `in`, holds a lease in
/// etcd for the peer, and writes replies to `out`. Blocks until the end of input or an error, then gives the lease
/// back, waiting for at most its time to live. Closes neither descriptor.
[[nodiscard]] ServeResult serve(const EtcdOptions& etcd, int in, int out);

}  // namespace ddrun::etcd
