#include "ddrun/worker_env/worker_environment.hpp"

#include <algorithm>
#include <set>

#include "ddrun/test/catch.hpp"

using ddrun::worker_env::worker_seed;

TEST_CASE("the seeds are the outputs of SplitMix64") {
  CHECK(worker_seed(0, 0) == 0xE220A8397B1DCDAFU);
  CHECK(worker_seed(0, 1) == 0x6E789E6AA1B965F4U);
  CHECK(worker_seed(0, 2) == 0x06C45D188009454FU);
  CHECK(worker_seed(1234567, 0) == 6457827717110365317U);
  CHECK(worker_seed(1234567, 1) == 3203168211198807973U);
  CHECK(worker_seed(1234567, 2) == 9817491932198370423U);
  CHECK(worker_seed(1234567, 3) == 4593380528125082431U);
  CHECK(worker_seed(1234567, 4) == 16408922859458223821U);
}
