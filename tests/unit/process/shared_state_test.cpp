#include <memory>
#include <string>

#include "ddrun/process/guard.hpp"
#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::process;

TEST_CASE("a private directory whose path does not fit in the shared page is refused") {
  const auto shared = std::make_unique<SharedState>();
  const std::string longest(sizeof shared->private_directory - 1, 'd');
  REQUIRE(shared->set_private_directory(longest));
  CHECK(shared->private_directory == longest);
  const auto result = shared->set_private_directory("/" + longest);
  REQUIRE_FALSE(result);
  CHECK(result.error().code == Errc::invalid_argument);
  CHECK(result.error().message == "the path of the job's private directory has 512 bytes, at most 511 are possible");
  CHECK(shared->private_directory == longest);
}
