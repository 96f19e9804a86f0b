#include "clone_child.hpp"

#include <linux/sched.h>

#include <cstdint>

// The C library's clone() under its other name: the sanitizers' clone() assumes a copy of the address space, and would
// let a child that shares memory change their state.
// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" int __clone(int (*function)(void*), void* stack, int flags, void* argument, ...) noexcept;

namespace ddrun::process {

namespace {

/// clone3 with a stack. The C library has no function for it, because the child cannot return from one. The child calls
/// `function` first. Registers other than the result's are those of the parent (clone(2), "raw system call").
long clone3_child(clone_args& arguments, int (*function)(void*), void* argument) {
#if defined(__x86_64__)
  long result;
  register int (*callee)(void*) __asm__("r12") = function;
  register void* passed __asm__("r13") = argument;
  __asm__ volatile(
      "syscall\n\t"
      "test %%rax, %%rax\n\t"
      "jnz 1f\n\t"
      "xor %%ebp, %%ebp\n\t"  // the end of the stack, for debuggers
      "mov %%r13, %%rdi\n\t"
      "call *%%r12\n\t"
      "ud2\n"
      "1:"
      : "=a"(result)
      : "a"(SYS_clone3), "D"(&arguments), "S"(sizeof arguments), "r"(callee), "r"(passed)
      : "rcx", "r11", "memory", "cc");
  return result;
#elif defined(__aarch64__)
  register long number __asm__("x8") = SYS_clone3;
  register long result __asm__("x0") = reinterpret_cast<long>(&arguments);
  register long size __asm__("x1") = sizeof arguments;
  register int (*callee)(void*) __asm__("x19") = function;
  register void* passed __asm__("x20") = argument;
  __asm__ volatile(
      "svc 0\n\t"
      "cbnz x0, 1f\n\t"
      "mov x29, xzr\n\t"
      "mov x0, x20\n\t"
      "blr x19\n\t"
      "brk 1\n"
      "1:"
      : "+r"(result)
      : "r"(number), "r"(size), "r"(callee), "r"(passed)
      : "memory", "cc");
  return result;
#else
  (void)arguments, (void)function, (void)argument;
  return -ENOSYS;
#endif
}

}  // namespace

long clone_child(const ChildClone& child, int (*function)(void*), void* argument) {
  if (child.cgroup < 0) {
    const int pid = __clone(function, child.stack + child.stack_bytes, static_cast<int>(child.flags), argument,
                            child.pidfd, nullptr, child.child_tid);
    return pid < 0 ? -errno : pid;
  }
  const auto address = [](const void* pointer) {
    return static_cast<__u64>(reinterpret_cast<std::uintptr_t>(pointer));
  };
  clone_args arguments{};
  arguments.flags = (child.flags & ~0xffU) | CLONE_INTO_CGROUP;
  arguments.exit_signal = child.flags & 0xffU;
  arguments.pidfd = address(child.pidfd);
  arguments.child_tid = address(child.child_tid);
  arguments.stack = address(child.stack);
  arguments.stack_size = child.stack_bytes;
  arguments.cgroup = static_cast<__u64>(child.cgroup);
  return clone3_child(arguments, function, argument);
}

}  // namespace ddrun::process
