#pragma once

#include <cstddef>

namespace ddrun::process {

/// A child that runs in our memory, beside us, on a stack of its own (CLONE_VM without CLONE_VFORK).
struct ChildClone {
  unsigned flags = 0;  ///< of clone(2), with the signal of its end in the lowest byte
  char* stack = nullptr;
  std::size_t stack_bytes = 0;     ///< a multiple of 16
  int* pidfd = nullptr;            ///< set with CLONE_PIDFD
  int* alive_in_memory = nullptr;  ///< cleared by the kernel with CLONE_CHILD_CLEARTID
  int cgroup = -1;                 ///< directory of the cgroup (version 2) to be born in; -1: ours
};

/// Runs `function(argument)`, which must not return, in a new process. Gives its id, or minus the error number; -ENOSYS
/// for a cgroup on a processor for which this is not written.
long clone_child(const ChildClone& child, int (*function)(void*), void* argument);

}  // namespace ddrun::process
