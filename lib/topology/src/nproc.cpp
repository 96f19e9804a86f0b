#include "ddrun/topology/nproc.hpp"

#include <algorithm>
#include <utility>

#include "ddrun/base/text.hpp"

namespace ddrun::topology {

Result<int> resolve_nproc(const NprocSpec& nproc, const CpuSet& allowed, const Gpus& gpus) {
  using Kind = NprocSpec::Kind;
  if (nproc.kind == Kind::count) {
    if (nproc.count >= 1) return nproc.count;
    return fail(Errc::invalid_argument, concat("--nproc-per-node=", nproc.count, ": at least 1 worker is needed"));
  }
  if (nproc.kind == Kind::gpu && gpus.count == 0) {
    return fail(Errc::invalid_argument,
                concat("--nproc-per-node=gpu, but there is no GPU: ", gpus.none_note, "; use a number, or cpu"));
  }
  if (nproc.kind == Kind::gpu || (nproc.kind == Kind::automatic && gpus.count > 0)) return gpus.count;
  return std::max(1, allowed.count());
}

Result<int> resolve_nproc(const NprocSpec& nproc, const SystemRoots& roots) {
  using Kind = NprocSpec::Kind;
  Gpus gpus;
  if (nproc.kind == Kind::gpu || nproc.kind == Kind::automatic) {
    gpus = find_gpus(GpuVariables::from_environment(), roots);
  }
  CpuSet allowed;
  if (nproc.kind == Kind::cpu || (nproc.kind == Kind::automatic && gpus.count == 0)) {
    auto cpus = allowed_cpus();
    if (!cpus) return tl::unexpected(cpus.error());
    allowed = std::move(*cpus);
  }
  return resolve_nproc(nproc, allowed, gpus);
}

void limit_gpus(NprocSpec& nproc, int given, const Gpus& here) {
  using Kind = NprocSpec::Kind;
  const bool asked = nproc.kind == Kind::gpu || nproc.kind == Kind::automatic;
  if (asked && here.count > given) nproc = {Kind::count, given};
}

}  // namespace ddrun::topology
