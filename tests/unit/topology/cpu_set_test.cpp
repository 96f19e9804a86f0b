#include "ddrun/topology/cpus.hpp"

#include <sched.h>
#include <unistd.h>

#include "ddrun/test/catch.hpp"

using namespace ddrun;
using topology::CpuSet;

TEST_CASE("CPU lists are read and written as the kernel does") {
  const CpuSet set = CpuSet::parse(" 0-3,8,10-11\n").value();
  CHECK(set.cpus() == std::vector<int>{0, 1, 2, 3, 8, 10, 11});
  CHECK(set.count() == 7);
  CHECK(set.first() == 0);
  CHECK(set.to_string() == "0-3,8,10,11");
  CHECK(CpuSet::parse("").value().empty());
  CHECK(CpuSet().first() == -1);
  for (const char* bad : {"x", "1-", "3-1", "-1", "1,,2", "0-99999999"}) {
    INFO(bad);
    CHECK_FALSE(CpuSet::parse(bad));
  }
}

TEST_CASE("CPUs above 1024 have their place in the mask") {
  const CpuSet set({5, 4095});
  CHECK(set.contains(4095));
  CHECK_FALSE(set.contains(4094));
  CHECK_FALSE(set.contains(100'000));
  CHECK(set.size_bytes() == 4096 / 8);
  CHECK(set.intersection(CpuSet({5, 6})) == CpuSet({5}));
}

TEST_CASE("the allowed CPUs are those of sched_getaffinity and can be set again") {
  const auto allowed = topology::allowed_cpus();
  REQUIRE(allowed);
  CHECK(allowed->count() >= 1);
  CHECK(allowed->count() <= ::sysconf(_SC_NPROCESSORS_CONF));
  const CpuSet one({allowed->first()});
  REQUIRE(::sched_setaffinity(0, one.size_bytes(), reinterpret_cast<const cpu_set_t*>(one.data())) == 0);
  CHECK(topology::allowed_cpus().value() == one);
  REQUIRE(::sched_setaffinity(0, allowed->size_bytes(), reinterpret_cast<const cpu_set_t*>(allowed->data())) == 0);
}
