#pragma once

#include <string>

namespace ddrun::topology {

/// Where the kernel's files are; tests put fake trees here.
struct SystemRoots {
  std::string sys = "/sys";
  std::string proc = "/proc";
  std::string dev = "/dev";
};

}  // namespace ddrun::topology
