#include "shm/mover.hpp"

#include <sys/prctl.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <utility>

#include "copy.hpp"
#include "ddrun/base/proc.hpp"
#include "shm/segment.hpp"

namespace ddrun::collectives {

namespace {

using Copy = ssize_t (*)(pid_t, const iovec*, unsigned long, const iovec*, unsigned long, unsigned long);

int copy_all(Copy copy, int pid, std::byte* own, std::byte* peer, std::size_t bytes) {
  // One call copies at most 2 GiB and stops at the first inaccessible page.
  while (bytes > 0) {
    const iovec local{own, bytes};
    const iovec remote{peer, bytes};
    const ssize_t done = copy(pid, &local, 1, &remote, 1, 0);
    if (done < 0) return errno;
    if (done == 0) return EFAULT;
    own += done;
    peer += done;
    bytes -= static_cast<std::size_t>(done);
  }
  return 0;
}

bool yama_restricts_to_ancestors() { return read_number("/proc/sys/kernel/yama/ptrace_scope") == 1; }

struct PtraceGrantCount {
  std::mutex mutex;
  int holders = 0;
};

PtraceGrantCount& grant_count() {
  static PtraceGrantCount instance;
  return instance;
}

}  // namespace

int copy_from_process(int pid, std::byte* to, const std::byte* from, std::size_t bytes) {
  return copy_all(&process_vm_readv, pid, to, const_cast<std::byte*>(from), bytes);
}

int copy_to_process(int pid, std::byte* to, const std::byte* from, std::size_t bytes) {
  return copy_all(&process_vm_writev, pid, const_cast<std::byte*>(from), to, bytes);
}

int probe_process(int pid, const AccessProbe::Handle& handle) {
  auto* const peer = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(handle.address));
  std::uint64_t found = 0;
  if (const int error = copy_from_process(pid, reinterpret_cast<std::byte*>(&found), peer, sizeof(found)); error != 0) {
    return error;
  }
  // The pid belongs to a process other than that rank's.
  if (found != handle.token) return ESRCH;
  return copy_to_process(pid, peer + offsetof(AccessProbe, writable), reinterpret_cast<const std::byte*>(&found),
                         sizeof(found));
}

bool is_process_gone(int pid, const AccessProbe::Handle& handle) {
  const auto* const peer = reinterpret_cast<const std::byte*>(static_cast<std::uintptr_t>(handle.address));
  std::byte found{};
  return copy_from_process(pid, &found, peer, sizeof(found)) == ESRCH;
}

PtraceGrant::PtraceGrant() {
  PtraceGrantCount& count = grant_count();
  const std::lock_guard lock(count.mutex);
  if (count.holders++ == 0 && yama_restricts_to_ancestors()) prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
}

PtraceGrant::~PtraceGrant() {
  PtraceGrantCount& count = grant_count();
  const std::lock_guard lock(count.mutex);
  if (--count.holders == 0 && yama_restricts_to_ancestors()) prctl(PR_SET_PTRACER, 0, 0, 0, 0);
}

namespace {

/// All ranks' parts together fit in a second-level cache. A part is large enough to amortise its system calls; beyond
/// max_part there is no gain.
constexpr std::size_t scratch_bytes = 1536 << 10;
constexpr std::size_t min_part = 16 << 10;
constexpr std::size_t max_part = 512 << 10;

bool all_local(std::span<const RankAddress> places) {
  return std::all_of(places.begin(), places.end(), [](const RankAddress& one) { return one.is_local(); });
}

}  // namespace

Mover::Mover(std::vector<int> pids)
    : pids_(std::move(pids)),
      part_(std::clamp(scratch_bytes / (pids_.size() + 1) / min_part * min_part, min_part, max_part)),
      local_(pids_.size()),
      from_(pids_.size()),
      results_(pids_.size()) {}

std::byte* Mover::scratch(std::size_t number) {
  // Allocated on first use, as local memory does not need it.
  if (scratch_ == nullptr) scratch_ = std::make_unique<std::byte[]>((pids_.size() + 1) * part_);
  return scratch_.get() + number * part_;
}

void Mover::record_failure(int rank, int error) {
  if (error != 0) failure_ = Failure{rank, error};
}

void Mover::fetch(std::byte* to, const RankAddress& from, std::size_t bytes) {
  if (failure_) return;
  record_failure(from.remote_rank,
                 copy_from_process(pids_[static_cast<std::size_t>(from.remote_rank)], to, from.data, bytes));
}

void Mover::store(const RankAddress& to, const std::byte* from, std::size_t bytes) {
  if (failure_) return;
  record_failure(to.remote_rank,
                 copy_to_process(pids_[static_cast<std::size_t>(to.remote_rank)], to.data, from, bytes));
}

std::optional<Mover::Failure> Mover::take_failure() { return std::exchange(failure_, std::nullopt); }

void Mover::copy(RankAddress to, RankAddress from, std::size_t bytes, Stores stores) {
  if (to.is_local() && from.is_local()) return copy_bytes(to.data, from.data, bytes, stores);
  if (to.is_local()) return fetch(to.data, from, bytes);
  if (from.is_local()) return store(to, from.data, bytes);
  for (std::size_t done = 0; done < bytes && !failure_; done += part_) {
    const std::size_t count = std::min(part_, bytes - done);
    fetch(scratch(0), from + done, count);
    store(to + done, scratch(0), count);
  }
}

void Mover::copy_to_all(std::span<const RankAddress> to, RankAddress from, std::size_t bytes, Stores stores) {
  std::size_t locals = 0;
  for (const RankAddress& place : to) {
    if (place.is_local()) local_[locals++] = place.data;
  }
  const bool everything_local = locals == to.size() && from.is_local();
  const std::size_t part = everything_local ? bytes : part_;
  for (std::size_t done = 0; done < bytes && !failure_; done += part) {
    const std::size_t count = std::min(part, bytes - done);
    std::byte* source = from.data;
    std::size_t fetched = 0;
    if (from.is_local()) {
      source += done;
    } else {
      source = locals > 0 ? local_[fetched++] : scratch(0);
      fetch(source, from + done, count);
    }
    collectives::copy_to_all({local_.data() + fetched, locals - fetched}, source, count, stores);
    for (const RankAddress& place : to) {
      if (!place.is_local() && !(place == from)) store(place + done, source, count);
    }
    for (std::size_t i = 0; i < locals; ++i) local_[i] += count;
  }
}

void Mover::rotate(std::span<const RankAddress> places, std::size_t bytes) {
  if (all_local(places)) {
    std::transform(places.begin(), places.end(), local_.begin(), [](const RankAddress& one) { return one.data; });
    return collectives::rotate({local_.data(), places.size()}, bytes);
  }
  for (std::size_t done = 0; done < bytes && !failure_; done += part_) {
    const std::size_t count = std::min(part_, bytes - done);
    const RankAddress kept{scratch(1)};
    copy(kept, places.back() + done, count, Stores::normal);
    for (std::size_t i = places.size() - 1; i > 0; --i) {
      copy(places[i] + done, places[i - 1] + done, count, Stores::normal);
    }
    copy(places.front() + done, kept, count, Stores::normal);
  }
}

void Mover::reduce(const Kernels& kernels, std::span<const RankAddress> in, std::span<const RankAddress> out,
                   std::size_t begin, std::size_t end, std::size_t element, Stores stores, int ranks) {
  std::size_t locals = 0;
  for (const RankAddress& place : out) {
    if (place.is_local()) results_[locals++] = place.data;
  }
  if (locals == out.size() && all_local(in)) {
    std::transform(in.begin(), in.end(), from_.begin(), [](const RankAddress& one) { return one.data; });
    return kernels.reduce(from_.data(), in.size(), results_.data(), locals, begin, end, stores, ranks);
  }
  // Results that are copied to another process should still be in the cache.
  if (locals < out.size()) stores = Stores::normal;
  const std::size_t part = part_ / element;
  for (std::size_t done = begin; done < end && !failure_; done += part) {
    const std::size_t count = std::min(part, end - done);
    for (std::size_t i = 0; i < in.size(); ++i) {
      const RankAddress its = in[i] + done * element;
      if (!its.is_local()) fetch(scratch(i), its, count * element);
      from_[i] = its.is_local() ? its.data : scratch(i);
    }
    locals = 0;
    for (const RankAddress& place : out) {
      if (place.is_local()) results_[locals++] = (place + done * element).data;
    }
    const bool no_local_output = locals == 0;
    if (no_local_output) results_[locals++] = scratch(in.size());
    if (failure_) return;
    kernels.reduce(from_.data(), in.size(), results_.data(), locals, 0, count, stores, ranks);
    for (const RankAddress& place : out) {
      if (!place.is_local()) store(place + done * element, static_cast<const std::byte*>(results_[0]), count * element);
    }
  }
}

}  // namespace ddrun::collectives
