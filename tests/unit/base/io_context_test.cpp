#include "ddrun/base/io_context.hpp"

#include <fcntl.h>
#include <sys/resource.h>

#include <boost/asio/steady_timer.hpp>
#include <stdexcept>

#include "ddrun/base/messages.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/test/catch.hpp"

using namespace ddrun;

namespace {

/// Lets this process open at most `count` more descriptors.
struct FewDescriptors {
  explicit FewDescriptors(int count) {
    ::getrlimit(RLIMIT_NOFILE, &before);
    const int first = ::fcntl(0, F_DUPFD, 0);
    ::close(first);
    const rlimit low{static_cast<rlim_t>(first + count), before.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &low);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before); }
  rlimit before{};
};

}  // namespace

TEST_CASE("without descriptors an event loop is an error, and with one its timers need none") {
  for (int count = 0; count < 3; ++count) {
    Result<std::unique_ptr<boost::asio::io_context>> made;
    {
      const FewDescriptors few(count);
      made = make_io_context();
    }
    if (made) continue;
    CHECK(made.error().code == Errc::unavailable);
    CHECK(made.error().message == "cannot watch for events: Too many open files");
  }
  const auto made = make_io_context();
  REQUIRE(made);
  const FewDescriptors none(0);
  REQUIRE_FALSE(make_io_context());
  boost::asio::steady_timer timer(**made, std::chrono::milliseconds(1));
  bool expired = false;
  timer.async_wait([&](const boost::system::error_code& ec) { expired = !ec; });
  (*made)->run();
  CHECK(expired);
}

TEST_CASE("an exception that reaches the end of main is a message and a code") {
  std::string said;
  set_message_sink([&](std::string_view line) { said += line; });
  CHECK(run_main(125, [] { return 7; }) == 7);
  CHECK(said.empty());
  CHECK(run_main(125, []() -> int { throw std::runtime_error("a library failed"); }) == 125);
}
