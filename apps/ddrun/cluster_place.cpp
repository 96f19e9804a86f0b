#include "cluster_place.hpp"

#include <unistd.h>

#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"

using namespace ddrun;

Result<cluster::Detected> detect_place(const cli::Launch& launch, pid_t started_pid) {
  const cluster::Variables variables(environ);
  if (launch.env_detect == "none") return cluster::Detected{};
  if (launch.env_detect == "auto" && !cluster::worth_looking(variables)) return cluster::Detected{};
  cluster::Machine machine = cluster::this_machine();
  machine.pid = started_pid;
  return cluster::detect(variables, cluster::read_text_file, machine, launch.env_detect);
}

Result<ClusterPlace> find_place(cli::Launch& launch, pid_t started_pid) {
  auto detected = detect_place(launch, started_pid);
  if (!detected) return tl::unexpected(detected.error());
  auto completion = cluster::complete(launch.spec, launch.given, *detected);
  if (!completion) return tl::unexpected(completion.error());
  for (const std::string& remark : completion->remarks) say(Level::info, remark);
  return ClusterPlace{std::move(*detected), std::move(*completion)};
}
