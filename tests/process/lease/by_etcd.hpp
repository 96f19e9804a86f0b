#pragma once

#include "candidates.hpp"
#include "ddrun/lease/etcd.hpp"

namespace ddrun::test {

/// A lease in etcd by etcdctl. `user`: NAME:PASSWORD; empty: none.
inline MakeLease by_etcd(const lease::EtcdOptions& etcd, const lease::LeaseOptions& options = {"job", ttl},
                         const std::string& user = {}) {
  std::vector<std::string> argv = lease::etcd_command(etcd);
  if (!user.empty()) argv.insert(argv.begin(), {"env", "DDRUN_ETCD_USER=" + user});
  return by_program(std::move(argv), options);
}

}  // namespace ddrun::test
