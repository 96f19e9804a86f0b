#include "ddrun/base/text.hpp"
#include "ddrun/collectives/backend.hpp"

namespace ddrun::collectives {

Result<std::string> probe(Backend backend) {
  switch (backend) {
    case Backend::nccl:
    case Backend::gloo: return fail(Errc::unavailable, concat("this build has no ", name_of(backend)));
    case Backend::shm: return "memory shared by the processes of one machine";
    case Backend::tcp: return "connections between the ranks";
    case Backend::automatic: break;
  }
  return "nccl with a GPU per rank, else shm inside a machine, else tcp";
}

}  // namespace ddrun::collectives
