#include "back_ends.hpp"

namespace ddrun::collectives {

Result<std::string> probe_gloo() {
  return fail(Errc::unsupported,
              "this build has no gloo: install libgloo-dev and build ddrun with DDRUN_WITH_GLOO=ON and "
              "DDRUN_LINK=dynamic");
}

Result<BackendConnection> connect_gloo(const Ranks& /*ranks*/, Deadline /*deadline*/) {
  return tl::unexpected(probe_gloo().error());
}

}  // namespace ddrun::collectives
