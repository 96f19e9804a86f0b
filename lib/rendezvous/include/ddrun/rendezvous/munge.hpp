#pragma once

#include <string>

namespace ddrun::rendezvous {

/// For agents without a secret that a Slurm job has started: MUNGE, which Slurm itself trusts, tells them who is the
/// same user (lib/rendezvous/PROTOCOL.md, section 1).
struct MungePlace {
  std::string job;     ///< Slurm's number of it
  std::string socket;  ///< of munged; empty: where MUNGE's programs look by themselves
};

}  // namespace ddrun::rendezvous
