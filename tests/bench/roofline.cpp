// Memory bandwidth of this machine: memcpy, triad (a = b + s c, after STREAM) and update (a = s - a), by one process
// per given processor, alone and all together. Prints JSON: bytes read and written by the program per second, the best
// of TURNS. The hardware's reads of lines before they are overwritten are not counted; memcpy avoids them.
//
//   roofline BYTES TURNS CPU...      arrays of so many bytes each
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

struct Shared {
  std::atomic<int> arrived{0};
  std::atomic<double> seconds[64];
};

void* memory(std::size_t bytes, int kind) {
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) {
    std::perror("roofline: mmap");
    std::exit(1);
  }
  return at;
}

/// Releases all `count` processes together. Each has its own processor, so spinning suffices.
void barrier(Shared& shared, int count, int& phase) {
  ++phase;
  shared.arrived.fetch_add(1);
  while (shared.arrived.load() < phase * count) {
    if (getppid() == 1) std::_Exit(1);
  }
}

enum class Kind { copy, triad, update };

double arrays_of(Kind kind) { return kind == Kind::triad ? 3 : 2; }

void triad(double* a, const double* b, const double* c, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) a[i] = b[i] + 3.0 * c[i];
}

void update(double* a, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) a[i] = 3.0 - a[i];
}

void work(Shared& shared, Kind kind, int turns, std::size_t bytes, int index, int count, int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(cpu), &set);
  sched_setaffinity(0, sizeof(set), &set);
  double* arrays[3];
  for (auto& array : arrays) {
    array = static_cast<double*>(memory(bytes, MAP_PRIVATE));
    madvise(array, bytes, MADV_HUGEPAGE);
    std::fill_n(array, bytes / sizeof(double), 1.0);
  }
  int phase = 0;
  for (int turn = 0; turn < turns; ++turn) {
    barrier(shared, count, phase);
    const auto began = Clock::now();
    switch (kind) {
      case Kind::copy: std::memcpy(arrays[0], arrays[1], bytes); break;
      case Kind::triad: triad(arrays[0], arrays[1], arrays[2], bytes / sizeof(double)); break;
      case Kind::update: update(arrays[0], bytes / sizeof(double)); break;
    }
    asm volatile("" ::"r"(arrays[0]) : "memory");
    shared.seconds[index] = std::chrono::duration<double>(Clock::now() - began).count();
    barrier(shared, count, phase);
    if (index != 0) continue;
    double slowest = 0;
    for (int i = 0; i < count; ++i) slowest = std::max(slowest, shared.seconds[i].load());
    const double best = shared.seconds[63];
    shared.seconds[63] = best == 0 ? slowest : std::min(best, slowest);
  }
}

double bytes_per_second(Kind kind, int turns, std::size_t bytes, const std::vector<int>& cpus) {
  auto* const shared = new (memory(sizeof(Shared), MAP_SHARED)) Shared;
  const int count = static_cast<int>(cpus.size());
  for (int i = 0; i < count; ++i) {
    if (fork() == 0) {
      work(*shared, kind, turns, bytes, i, count, cpus[static_cast<std::size_t>(i)]);
      std::_Exit(0);
    }
  }
  for (int i = 0; i < count; ++i) {
    int status = 0;
    if (wait(&status) < 0 || status != 0) {
      std::fputs("roofline: a process failed\n", stderr);
      std::exit(1);
    }
  }
  return arrays_of(kind) * static_cast<double>(bytes) * count / shared->seconds[63];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4 || argc > 3 + 63) {
    std::fputs("usage: roofline BYTES TURNS CPU...\n", stderr);
    return 2;
  }
  const std::size_t bytes = std::strtoull(argv[1], nullptr, 10) / 64 * 64;
  const int turns = std::atoi(argv[2]);
  std::vector<int> cpus;
  for (int i = 3; i < argc; ++i) cpus.push_back(std::atoi(argv[i]));
  const std::vector<int> one(cpus.begin(), cpus.begin() + 1);
  const char* separator = "{";
  for (const auto& [name, kind] : {std::pair("copy", Kind::copy), {"triad", Kind::triad}, {"update", Kind::update}}) {
    for (const auto& [label, used] : {std::pair("one", one), {"all", cpus}}) {
      std::printf("%s\"%s_%s\": %.4g", separator, name, label, bytes_per_second(kind, turns, bytes, used));
      std::fflush(stdout);  // before fork(), which would duplicate the buffer
      separator = ", ";
    }
  }
  std::puts("}");
}
