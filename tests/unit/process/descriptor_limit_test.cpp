#include "ddrun/process/descriptor_limit.hpp"

#include <fcntl.h>
#include <stdlib.h>

#include <algorithm>
#include <vector>

#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::process;

namespace {

/// Restores the limit in its destructor.
struct LimitKeeper {
  LimitKeeper() { ::getrlimit(RLIMIT_NOFILE, &before); }
  ~LimitKeeper() { ::setrlimit(RLIMIT_NOFILE, &before); }
  LimitKeeper(const LimitKeeper&) = delete;
  LimitKeeper& operator=(const LimitKeeper&) = delete;
  rlimit before{};
};

rlimit limit() {
  rlimit now{};
  ::getrlimit(RLIMIT_NOFILE, &now);
  return now;
}

void set_soft_limit(rlim_t soft) {
  rlimit lower = limit();
  lower.rlim_cur = soft;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &lower) == 0);
}

/// Size of the kernel's descriptor table.
long table_size() {
  for (const std::string& line : split(read_small_file("/proc/self/status").value_or(""), '\n')) {
    if (line.starts_with("FDSize:")) return ::atol(line.c_str() + 7);
  }
  return -1;
}

}  // namespace

TEST_CASE("the descriptor table is enlarged in advance") {
  const LimitKeeper keeper;
  raise_descriptor_limit();
  const long before = table_size();
  const auto more = std::min<std::size_t>(4 * static_cast<std::size_t>(before), limit().rlim_cur);
  reserve_descriptors(more);
  CHECK(table_size() >= static_cast<long>(more));
  // A count above the limit reserves up to the limit, and no descriptor is left open.
  const std::size_t free_before = free_descriptors();
  reserve_descriptors(limit().rlim_cur + 100);
  CHECK(free_descriptors() == free_before);
}

TEST_CASE("the soft limit is raised to the hard one and the old one returned") {
  const LimitKeeper keeper;
  set_soft_limit(100);
  const rlimit before = raise_descriptor_limit();
  CHECK(before.rlim_cur == 100);
  CHECK(before.rlim_max == keeper.before.rlim_max);
  CHECK(limit().rlim_cur == limit().rlim_max);
  CHECK(limit().rlim_max == keeper.before.rlim_max);
  // Again: nothing to do.
  CHECK(raise_descriptor_limit().rlim_cur == limit().rlim_max);
}

TEST_CASE("free descriptors are exactly those that can be opened") {
  const LimitKeeper keeper;
  set_soft_limit(64);
  const std::size_t free_before = free_descriptors();
  REQUIRE(free_before > 3);
  REQUIRE(free_before < 64);
  std::vector<UniqueFd> opened;
  while (true) {
    UniqueFd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!fd) break;
    opened.push_back(std::move(fd));
  }
  CHECK(opened.size() == free_before);
  CHECK(free_descriptors() == 0);
}
