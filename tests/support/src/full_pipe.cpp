#include "ddrun/test/full_pipe.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <stdexcept>

#include "ddrun/test/processes.hpp"

namespace ddrun::test {

FullPipe::FullPipe() {
  auto pipe = make_pipe();
  if (!pipe) throw std::runtime_error("no pipe");
  read_ = std::move(pipe->read);
  write_ = std::move(pipe->write);
  // Not the usual size, so that ddrun does not enlarge it.
  ::fcntl(write_.get(), F_SETPIPE_SZ, 16'384);
  ::fcntl(read_.get(), F_SETFL, O_NONBLOCK);
  ::fcntl(write_.get(), F_SETFL, O_NONBLOCK);
  while (::write(write_.get(), "x", 1) == 1) {
  }
  ::fcntl(write_.get(), F_SETFL, 0);
}

bool FullPipe::wait_for(const std::string& text) {
  return wait_until([&] {
    char chunk[4096];
    for (ssize_t n; (n = ::read(read_.get(), chunk, sizeof chunk)) > 0;)
      seen_.append(chunk, static_cast<std::size_t>(n));
    return seen_.find(text) != std::string::npos;
  });
}

}  // namespace ddrun::test
