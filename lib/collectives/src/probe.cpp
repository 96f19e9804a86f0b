#include "ddrun/base/text.hpp"
#include "ddrun/collectives/backend.hpp"
#include "gloo/backend.hpp"
#include "gpu/survey.hpp"

namespace ddrun::collectives {

namespace {

Result<std::string> probe_nccl() {
  const GpuSurvey survey = GpuSurvey::mine(true);
  if (survey.devices.empty() || survey.nccl == 0) {
    return fail(Errc::unsupported, concat("nccl cannot run here: ", survey.in_words()));
  }
  return survey.in_words();
}

}  // namespace

Result<std::string> probe(Backend backend) {
  switch (backend) {
    case Backend::nccl: return probe_nccl();
    case Backend::gloo: return probe_gloo();
    case Backend::shm: return "memory shared by the processes of one machine";
    case Backend::tcp: return "connections between the ranks";
    case Backend::automatic: break;
  }
  return "nccl with a GPU per rank, else shm inside a machine, else tcp";
}

}  // namespace ddrun::collectives
