#include "measure/roofline.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>

#include "ddrun/base/text.hpp"
#include "ddrun/collectives/private_memory.hpp"
#include "measure/memory_budget.hpp"
#include "tell_all.hpp"

namespace ddrun::allreduce {

namespace {

constexpr int kPasses = 5;
constexpr std::uint64_t kLeast = std::uint64_t{64} << 20U;
constexpr std::uint64_t kMost = std::uint64_t{256} << 20U;
/// Arrays so many times as large as the last cache leave nothing of themselves in it.
constexpr std::uint64_t kTimesCache = 4;

/// Bytes of each of three arrays, of `ranks` ranks on this machine.
std::uint64_t array_bytes(int ranks) {
  const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
  const std::uint64_t wanted = std::clamp(kTimesCache * static_cast<std::uint64_t>(std::max(cache, 0L)), kLeast, kMost);
  const std::uint64_t fits = free_memory() / 4 / (3 * static_cast<std::uint64_t>(ranks));
  return std::max<std::uint64_t>(std::min(wanted, fits) / 4096 * 4096, 4096);
}

/// STREAM's triad (J. McCalpin, 1995).
void triad(double* a, const double* b, const double* c, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) a[i] = b[i] + 3 * c[i];
}

double now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

class Passes {
 public:
  Passes(collectives::Communicator& control, Milliseconds timeout) : control_(control), timeout_(timeout) {}

  /// Seconds of the fastest of some passes, each from the first start to the last end of those who `work`, which are
  /// all on one machine and have one clock.
  Result<double> best(bool works, const std::function<void()>& body) {
    double best = 0;
    for (int pass = 0; pass < kPasses; ++pass) {
      if (auto met = control_.barrier(Clock::now() + timeout_); !met) return tl::unexpected(met.error());
      std::array<double, 2> times{-INFINITY, -INFINITY};  // the end, and the start with the other sign
      times[1] = works ? -now() : times[1];
      if (works) body();
      times[0] = works ? now() : times[0];
      if (auto told = largest_of_all(control_, times, Clock::now() + timeout_); !told) {
        return tl::unexpected(told.error());
      }
      const double took = times[0] + times[1];
      if (pass == 0 || took < best) best = took;
    }
    return best;
  }

 private:
  collectives::Communicator& control_;
  Milliseconds timeout_;
};

}  // namespace

Result<Roofline> measure_roofline(const collectives::Connected& connected, const Options& options) {
  collectives::Communicator& control = *connected.control;
  const auto rank = static_cast<std::size_t>(control.rank());
  const std::string& host = connected.members[0].host;
  const bool here = connected.members[rank].host == host;
  Roofline roofline;
  roofline.ranks = static_cast<int>(std::count_if(connected.members.begin(), connected.members.end(),
                                                  [&](const auto& one) { return one.host == host; }));
  // Rank 0 decides.
  std::array<double, 1> bytes{rank == 0 ? static_cast<double>(array_bytes(roofline.ranks)) : 0};
  if (auto told = largest_of_all(control, bytes, Clock::now() + options.op_timeout); !told) {
    return tl::unexpected(told.error());
  }
  roofline.bytes = static_cast<std::uint64_t>(bytes[0]);
  collectives::PrivateMemory memory;
  if (auto got = memory.allocate(here ? roofline.bytes : 0, 3); !got) return tl::unexpected(got.error());
  const std::size_t count = roofline.bytes / sizeof(double);
  auto* const a = reinterpret_cast<double*>(memory.data());
  double* const b = a + count;
  double* const c = b + count;
  if (here) std::fill(a, a + 3 * count, 1.0);

  Passes passes(control, options.op_timeout);
  const auto measure = [&](bool works, int ranks, int arrays, const std::function<void()>& body) -> Result<double> {
    const auto seconds = passes.best(works, body);
    if (!seconds) return seconds;
    return static_cast<double>(roofline.bytes) * arrays * ranks / *seconds / 1e9;
  };
  const auto copy = [&] { std::memcpy(a, b, roofline.bytes); };
  const auto add = [&] { triad(a, b, c, count); };
  struct Run {
    double* to;
    bool works;
    int ranks;
    int arrays;
    std::function<void()> body;
  };
  for (const Run& run : {Run{&roofline.copy_one, rank == 0, 1, 2, copy},
                         {&roofline.copy_all, here, roofline.ranks, 2, copy},
                         {&roofline.triad_one, rank == 0, 1, 3, add},
                         {&roofline.triad_all, here, roofline.ranks, 3, add}}) {
    const auto result = measure(run.works, run.ranks, run.arrays, run.body);
    if (!result) return tl::unexpected(result.error());
    *run.to = *result;
  }
  return roofline;
}

std::string line_of(const Roofline& roofline) {
  std::array<char, 256> text{};
  std::snprintf(
      text.data(), text.size(),
      "# roofline : copy %.2f GB/s by one rank, %.2f by %d; triad %.2f by one, %.2f by %d; arrays of %llu MiB\n",
      roofline.copy_one, roofline.copy_all, roofline.ranks, roofline.triad_one, roofline.triad_all, roofline.ranks,
      static_cast<unsigned long long>(roofline.bytes >> 20U));
  return text.data();
}

}  // namespace ddrun::allreduce
