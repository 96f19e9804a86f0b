#pragma once

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>

namespace ddrun::process {

/// A child that shares the parent's memory and runs concurrently on its own stack (CLONE_VM without CLONE_VFORK).
struct ChildClone {
  unsigned flags = 0;  ///< of clone(2), with the exit signal in the lowest byte
  char* stack = nullptr;
  std::size_t stack_bytes = 0;  ///< a multiple of 16
  int* pidfd = nullptr;         ///< set with CLONE_PIDFD
  int* child_tid = nullptr;     ///< cleared by the kernel with CLONE_CHILD_CLEARTID
  int cgroup = -1;              ///< directory of its cgroup (version 2); -1: that of the caller
};

/// Runs `function(argument)`, which must not return, in a new process. Returns its pid, or minus the error number;
/// -ENOSYS for a cgroup on an unsupported architecture. Blocks only with CLONE_VFORK.
long clone_child(const ChildClone& child, int (*function)(void*), void* argument);

/// A system call that uses neither errno nor anything else of the C library, for a child that shares its parent's
/// memory and thereby its errno. Returns the result, or minus the error number.
template <class A = long, class B = long, class C = long, class D = long>
__attribute__((always_inline, no_sanitize("address", "thread", "undefined"))) inline long raw_syscall(
    long number, A a = A(), B b = B(), C c = C(), D d = D()) {
#if defined(__x86_64__)
  long result;
  register long r10 __asm__("r10") = (long)d;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"((long)a), "S"((long)b), "d"((long)c), "r"(r10)
                   : "rcx", "r11", "memory");
  return result;
#elif defined(__aarch64__)
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = (long)a;
  register long x1 __asm__("x1") = (long)b;
  register long x2 __asm__("x2") = (long)c;
  register long x3 __asm__("x3") = (long)d;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
  return x0;
#else
  const long result = ::syscall(number, a, b, c, d);
  return result < 0 ? -errno : result;
#endif
}

}  // namespace ddrun::process
