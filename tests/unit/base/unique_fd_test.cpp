#include "ddrun/base/unique_fd.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "ddrun/test/catch.hpp"

using namespace ddrun;

TEST_CASE("a descriptor that another program has made non-blocking is written to the end") {
  Pipe pipe = make_pipe().value();
  REQUIRE(::fcntl(pipe.write.get(), F_SETFL, O_NONBLOCK) == 0);
  const std::string text(300'000, 'x');
  std::string got;
  std::thread reader([&] {
    // Only after the writer has found the pipe full.
    pollfd full{pipe.write.get(), POLLOUT, 0};
    while (::poll(&full, 1, 0) == 1) std::this_thread::yield();
    char buffer[4096];
    for (ssize_t n; got.size() < text.size() && (n = ::read(pipe.read.get(), buffer, sizeof buffer)) > 0;) {
      got.append(buffer, static_cast<std::size_t>(n));
    }
  });
  CHECK(write_all(pipe.write.get(), text.data(), text.size()));
  reader.join();
  CHECK(got == text);
}
