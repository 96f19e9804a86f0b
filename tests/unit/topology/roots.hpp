#pragma once

#include "ddrun/test/files.hpp"
#include "ddrun/topology/cgroup.hpp"

namespace ddrun::test {

/// A system that consists of the files in `dir`.
inline topology::SystemRoots roots_of(const TemporaryDirectory& dir) {
  return {dir.path() + "/sys", dir.path() + "/proc", dir.path() + "/dev"};
}

}  // namespace ddrun::test
