#include "shm/peer_memory.hpp"

#include <sys/prctl.h>
#include <sys/uio.h>

#include <cerrno>
#include <fstream>
#include <mutex>

namespace ddrun::collectives {

namespace {

using Copy = ssize_t (*)(pid_t, const iovec*, unsigned long, const iovec*, unsigned long, unsigned long);

int copy_all(Copy copy, int pid, std::byte* here, std::byte* there, std::size_t bytes) {
  // One call copies 2 GiB at most, and stops at the first page that it does not get.
  while (bytes > 0) {
    const iovec local{here, bytes};
    const iovec remote{there, bytes};
    const ssize_t done = copy(pid, &local, 1, &remote, 1, 0);
    if (done < 0) return errno;
    if (done == 0) return EFAULT;
    here += done;
    there += done;
    bytes -= static_cast<std::size_t>(done);
  }
  return 0;
}

bool restricted_to_ancestors() {
  std::ifstream file("/proc/sys/kernel/yama/ptrace_scope");
  int scope = 0;
  return file >> scope && scope == 1;
}

struct Consent {
  std::mutex mutex;
  int holders = 0;
};

Consent& consent() {
  static Consent instance;
  return instance;
}

}  // namespace

int copy_from_process(int pid, std::byte* to, const std::byte* from, std::size_t bytes) {
  return copy_all(&process_vm_readv, pid, to, const_cast<std::byte*>(from), bytes);
}

int copy_to_process(int pid, std::byte* to, const std::byte* from, std::size_t bytes) {
  return copy_all(&process_vm_writev, pid, const_cast<std::byte*>(from), to, bytes);
}

int try_process(int pid, const Trial::Note& note) {
  auto* const there = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(note.address));
  std::uint64_t found = 0;
  if (const int error = copy_from_process(pid, reinterpret_cast<std::byte*>(&found), there, sizeof(found));
      error != 0) {
    return error;
  }
  // Somebody else's memory, whoever that is.
  if (found != note.word) return ESRCH;
  return copy_to_process(pid, there + offsetof(Trial, room), reinterpret_cast<const std::byte*>(&found), sizeof(found));
}

bool is_gone(int pid, const Trial::Note& note) {
  const auto* const there = reinterpret_cast<const std::byte*>(static_cast<std::uintptr_t>(note.address));
  std::byte found{};
  return copy_from_process(pid, &found, there, sizeof(found)) == ESRCH;
}

OpenToPeers::OpenToPeers() {
  Consent& given = consent();
  const std::lock_guard lock(given.mutex);
  if (given.holders++ == 0 && restricted_to_ancestors()) prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
}

OpenToPeers::~OpenToPeers() {
  Consent& given = consent();
  const std::lock_guard lock(given.mutex);
  if (--given.holders == 0 && restricted_to_ancestors()) prctl(PR_SET_PTRACER, 0, 0, 0, 0);
}

}  // namespace ddrun::collectives
