#pragma once

#include <string>
#include <vector>

#include "ddrun/base/result.hpp"

namespace ddrun::lease {

/// How etcdctl reaches etcd. What is empty is left to its variables (ETCDCTL_CACERT, ETCDCTL_USER, ...).
struct EtcdOptions {
  std::string endpoints;  ///< HOST[:PORT],...; port 2379 if none is given
  bool tls = false;
  std::string cacert{}, cert{}, key{};  ///< PEM files
};

/// The lease's program for etcd, src/etcd.sh, as a command: needs sh and etcdctl in PATH.
[[nodiscard]] std::vector<std::string> etcd_command(const EtcdOptions& options);

/// Errors: `not_found` if PATH has no etcdctl, with a sentence for the user.
[[nodiscard]] Result<void> check_etcdctl();

}  // namespace ddrun::lease
