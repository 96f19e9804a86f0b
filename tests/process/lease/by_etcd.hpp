#pragma once

#include "candidates.hpp"
#include "ddrun/etcd/etcd_lease.hpp"

namespace ddrun::test {

// The same tests are built twice: for a lease of this process, and for that of the program ddrun-etcd.
#ifdef DDRUN_TEST_ETCD_PROGRAM

inline constexpr bool through_program = true;

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

#else

inline constexpr bool through_program = false;

inline MakeLease by_etcd(const etcd::EtcdOptions& etcd, const lease::LeaseOptions& options = {"job", ttl}) {
  return [=](const boost::asio::any_io_executor& executor, lease::Callbacks callbacks) {
    return etcd::make_etcd_lease(executor, options, etcd, std::move(callbacks));
  };
}

#endif

}  // namespace ddrun::test
