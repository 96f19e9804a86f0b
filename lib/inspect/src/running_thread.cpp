#include "running_thread.hpp"

#include <errno.h>
#include <linux/perf_event.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>

#include "ddrun/base/unique_fd.hpp"

namespace ddrun::inspect {

namespace {

constexpr std::uint32_t stack_bytes = 16U << 10U;  ///< a multiple of 8
constexpr std::size_t data_pages = 16;             ///< a power of two; a sample needs no more than half
constexpr std::uint64_t sample_period = 500'000;   ///< nanoseconds

/// The kernel's numbers of registers, in ascending order, with those of Registers.
struct SampledRegister {
  unsigned kernel;
  std::size_t dwarf;
};
#if defined(__aarch64__)
constexpr auto sampled = [] {
  std::array<SampledRegister, 33> all{};
  for (unsigned i = 0; i < all.size(); ++i) all[i] = {i, i};
  return all;
}();
#else
// asm/perf_regs.h: ax bx cx dx si di bp sp ip, then flags, segments and r8 to r15.
constexpr std::array<SampledRegister, 17> sampled{{{0, 0},
                                                   {1, 3},
                                                   {2, 2},
                                                   {3, 1},
                                                   {4, 4},
                                                   {5, 5},
                                                   {6, 6},
                                                   {7, 7},
                                                   {8, 16},
                                                   {16, 8},
                                                   {17, 9},
                                                   {18, 10},
                                                   {19, 11},
                                                   {20, 12},
                                                   {21, 13},
                                                   {22, 14},
                                                   {23, 15}}};
#endif

std::uint64_t register_mask() {
  std::uint64_t mask = 0;
  for (const SampledRegister& one : sampled) mask |= std::uint64_t{1} << one.kernel;
  return mask;
}

/// PERF_RECORD_SAMPLE with PERF_SAMPLE_REGS_USER and PERF_SAMPLE_STACK_USER: abi, registers, size, stack, used size.
bool read_sample(const std::byte* record, std::size_t size, ThreadSample& to) {
  std::size_t next = sizeof(perf_event_header);
  const auto word = [&] {
    std::uint64_t value = 0;
    if (size - next >= sizeof value) {
      std::memcpy(&value, record + next, sizeof value);
      next += sizeof value;
    }
    return value;
  };
  if (word() != PERF_SAMPLE_REGS_ABI_64) return false;
  for (const SampledRegister& one : sampled) to.registers[one.dwarf] = word();
  const std::uint64_t copied = word();
  if (copied > size - next || copied == 0) return copied == 0;
  to.stack.assign(record + next, record + next + copied);
  next += copied;
  to.stack.resize(std::min<std::uint64_t>(copied, word()));
  return true;
}

}  // namespace

Result<ThreadSample> sample_running_thread(pid_t thread, Deadline deadline) {
  perf_event_attr event{};
  event.size = sizeof event;
  event.type = PERF_TYPE_SOFTWARE;
  event.config = PERF_COUNT_SW_CPU_CLOCK;
  event.sample_period = sample_period;
  event.sample_type = PERF_SAMPLE_REGS_USER | PERF_SAMPLE_STACK_USER;
  event.sample_regs_user = register_mask();
  event.sample_stack_user = stack_bytes;
  event.exclude_kernel = 1;
  event.exclude_hv = 1;
  event.wakeup_events = 1;
  const UniqueFd clock(static_cast<int>(::syscall(SYS_perf_event_open, &event, thread, -1, -1, PERF_FLAG_FD_CLOEXEC)));
  if (!clock) return fail_errno(Errc::unavailable, "no frames while it computes: perf_event_open", errno);
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t size = (1 + data_pages) * page;
  void* const mapped = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, clock.get(), 0);
  if (mapped == MAP_FAILED) return fail_errno(Errc::unavailable, "no frames while it computes: perf_event_open", errno);
  const auto unmap = [size](void* memory) { ::munmap(memory, size); };
  const std::unique_ptr<void, decltype(unmap)> ring(mapped, unmap);
  pollfd readable{clock.get(), POLLIN, 0};
  while (::poll(&readable, 1, poll_timeout(deadline)) < 0 && errno == EINTR) {
  }
  // The first record begins at the beginning of the data, and the kernel writes over nothing that was not read.
  const auto* const data = static_cast<const std::byte*>(mapped) + page;
  const std::uint64_t head =
      __atomic_load_n(&static_cast<const perf_event_mmap_page*>(mapped)->data_head, __ATOMIC_ACQUIRE);
  perf_event_header header{};
  if (head >= sizeof header) std::memcpy(&header, data, sizeof header);
  ThreadSample sample;
  const bool complete = header.type == PERF_RECORD_SAMPLE && header.size <= head && header.size <= data_pages * page;
  if (!complete || !read_sample(data, header.size, sample)) {
    return fail(Errc::timeout, "no frames while it computes: it did not get a processor meanwhile");
  }
  return sample;
}

}  // namespace ddrun::inspect
