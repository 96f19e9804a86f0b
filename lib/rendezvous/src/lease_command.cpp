#include "lease_command.hpp"

#include <utility>

#include "ddrun/base/text.hpp"
#include "ddrun/lease/etcd.hpp"

namespace ddrun::rendezvous {

lease::ProgramOptions lease_command(const RendezvousSpec& spec, std::function<void(pid_t)> on_program) {
  lease::ProgramOptions program;
  if (spec.is_etcd()) {
    program.name = "etcdctl";
    const auto conf = [&](const char* key) { return spec.conf_value(key).value_or(""); };
    program.argv =
        lease::etcd_command({spec.endpoint, conf("protocol") == "https", conf("cacert"), conf("cert"), conf("key")});
    // Not in argv, which is visible to all users.
    if (const std::string user = conf("user"); !user.empty()) program.environment = concat("DDRUN_ETCD_USER=", user);
  } else {
    for (auto& word : split(spec.lease, ' ')) {
      if (!word.empty()) program.argv.push_back(std::move(word));
    }
  }
  program.on_start = std::move(on_program);
  return program;
}

}  // namespace ddrun::rendezvous
