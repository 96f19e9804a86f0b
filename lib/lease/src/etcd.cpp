#include "ddrun/lease/etcd.hpp"

#include "ddrun/base/address.hpp"
#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"
#include "etcd_source.hpp"

namespace ddrun::lease {

namespace {
constexpr int default_port = 2379;
}  // namespace

std::vector<std::string> etcd_command(const EtcdOptions& options) {
  std::vector<std::string> urls;
  for (const std::string& endpoint : split(options.endpoints, ',')) {
    if (endpoint.find("://") != std::string::npos) {
      urls.push_back(endpoint);
      continue;
    }
    const auto at = split_host_port(endpoint);
    const std::string with_port = at && !at->port ? host_port_text(at->host, default_port) : endpoint;
    urls.push_back(concat(options.tls ? "https://" : "", with_port));
  }
  return {"sh", "-c", etcd_source, "etcd", join(urls, ","), options.cacert, options.cert, options.key};
}

Result<void> check_etcdctl() {
  if (!find_in_path("etcdctl").empty()) return {};
  return fail(Errc::not_found,
              "--rdzv-backend=etcd needs etcdctl, which is not in PATH; install it (Debian and Ubuntu: etcd-client)");
}

}  // namespace ddrun::lease
