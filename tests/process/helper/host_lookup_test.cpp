// Host names asked of getent.

#include "ddrun/helper/host_lookup.hpp"

#include <stdlib.h>

#include <boost/asio/io_context.hpp>
#include <optional>

#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"

using namespace ddrun;
using namespace std::chrono_literals;

namespace {

using Found = Result<std::vector<std::string>>;

/// A getent like musl's, which takes the second word for the name, and no option.
class Getent {
 public:
  Getent() {
    directory_.file("getent", "#!/bin/sh\n[ \"$1 $2\" = 'ahosts known' ] && echo '192.0.2.7 STREAM known'\n", 0755);
    ::setenv("PATH", (directory_.path() + ":" + before_).c_str(), 1);
  }
  ~Getent() { ::setenv("PATH", before_.c_str(), 1); }

 private:
  ddrun::test::TemporaryDirectory directory_;
  std::string before_ = ::getenv("PATH");
};

Found looked_up(const std::string& host) {
  boost::asio::io_context context;
  std::optional<Found> result;
  const auto running =
      helper::look_up_host(context.get_executor(), host, 20s, [&](const Found& found) { result = found; });
  CHECK_FALSE(result);
  context.run();
  REQUIRE(result);
  return *result;
}

}  // namespace

TEST_CASE("a host is looked up by every getent") {
  const Getent getent;
  const auto found = looked_up("known");
  REQUIRE(found);
  CHECK(*found == std::vector<std::string>{"192.0.2.7"});
  CHECK(helper::look_up_host("known", 20s).value_or(std::vector<std::string>()) == *found);
}

TEST_CASE("a name that getent would take for an option is refused") {
  const Getent getent;
  for (const auto& found : {looked_up("-s"), helper::look_up_host("-s", 20s)}) {
    REQUIRE_FALSE(found);
    CHECK(found.error().message == "'-s' is no host: a host's name does not begin with '-'");
  }
  boost::asio::io_context context;
  {
    const auto dropped = helper::look_up_host(context.get_executor(), "-s", 20s, [](const Found&) { FAIL(); });
  }
  context.run();
}
