#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "ddrun/process/spawner.hpp"

namespace ddrun::process {

/// Where a child got to before it failed; see spawn_order.cpp for the order.
enum class SpawnStep { none, session, parent_death, affinity, limits, descriptors, directory, standard_streams, exec };

[[nodiscard]] const char* describe(SpawnStep step);

/// What the child needs to know. It lives in the parent's memory: the child runs there until exec.
struct ChildStart {
  SpawnPlan plan;
  pid_t parent;
  int slots[3];             ///< descriptors parked low for 0, 1, 2; -1: keep ours
  unsigned first_unused;    ///< descriptors from here on are not for the child
  bool shared_descriptors;  ///< cloned with CLONE_FILES: unshare before anything is changed
  bool has_close_range;
  const rlimit* descriptor_limit;  ///< what the user had before we raised ours; null: unchanged
  const int* reset_signals;        ///< zero-terminated: those not at their default in the parent
  // Result.
  SpawnStep failed_step = SpawnStep::none;
  int error = 0;
};

/// Runs in the child, on a stack of its own but in the parent's memory and beside it, with all signals blocked. Does
/// not return. Only raw system calls: no allocation, no locks, no errno, nothing of the C or C++ libraries.
int run_child(void* child_start);

}  // namespace ddrun::process
