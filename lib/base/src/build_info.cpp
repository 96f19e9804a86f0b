#include "ddrun/base/build_info.hpp"

#include "ddrun_commit.hpp"

namespace ddrun {

const BuildInfo& build_info() {
  static constexpr BuildInfo info{DDRUN_VERSION, DDRUN_COMMIT,   DDRUN_BUILD_TYPE, DDRUN_COMPILER,
                                  DDRUN_LINK,    DDRUN_SANITIZE, DDRUN_BOOST,      DDRUN_LIBRARIES};
  return info;
}

}  // namespace ddrun
