#pragma once

#include "candidates.hpp"
#include "ddrun/etcd/etcd_lease.hpp"

namespace ddrun::test {

/// A lease by the program ddrun-etcd.
inline MakeLease by_etcd(const etcd::EtcdOptions& etcd, const lease::LeaseOptions& options = {"job", ttl}) {
  std::vector<std::string> argv{DDRUN_TEST_ETCD_PROGRAM, "--endpoints=" + join(etcd.endpoints, ",")};
  if (!etcd.user.empty()) {
    argv.insert(argv.begin(), {"env", concat("DDRUN_ETCD_USER=", etcd.user, ':', etcd.password)});
  }
  if (etcd.tls) argv.emplace_back("--tls");
  for (const auto& [name, file] :
       {std::pair("--cacert=", etcd.cacert), std::pair("--cert=", etcd.cert), std::pair("--key=", etcd.key)}) {
    if (!file.empty()) argv.push_back(name + file);
  }
  return by_program(std::move(argv), options);
}

}  // namespace ddrun::test
