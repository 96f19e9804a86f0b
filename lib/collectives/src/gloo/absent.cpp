#include "gloo/backend.hpp"

namespace ddrun::collectives {

Result<std::string> probe_gloo() {
  return fail(Errc::unsupported,
              "this build has no gloo: install libgloo-dev and build ddrun with DDRUN_WITH_GLOO=ON and "
              "DDRUN_LINK=dynamic");
}

Result<std::unique_ptr<Communicator>> connect_gloo(const Group& /*group*/, std::size_t /*buffer_bytes*/,
                                                   std::shared_ptr<Communicator> /*control*/, Deadline /*deadline*/) {
  return tl::unexpected(probe_gloo().error());
}

}  // namespace ddrun::collectives
