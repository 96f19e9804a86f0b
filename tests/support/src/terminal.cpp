#include "ddrun/test/terminal.hpp"

#include <fcntl.h>
#include <pty.h>
#include <termios.h>
#include <unistd.h>

#include "ddrun/test/catch.hpp"

namespace ddrun::test {

Terminal::Terminal(const winsize* size) {
  int master = -1;
  int slave = -1;
  if (::openpty(&master, &slave, nullptr, nullptr, size) != 0) skip("no pseudo-terminals here");
  front = UniqueFd(master);
  tty = UniqueFd(slave);
  for (const int fd : {master, slave}) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  ::fcntl(master, F_SETFL, O_NONBLOCK);
}

void Terminal::make_raw() const {
  termios settings{};
  REQUIRE(::tcgetattr(tty.get(), &settings) == 0);
  ::cfmakeraw(&settings);
  REQUIRE(::tcsetattr(tty.get(), TCSANOW, &settings) == 0);
}

void Terminal::resize(const winsize& size) const { REQUIRE(::ioctl(front.get(), TIOCSWINSZ, &size) == 0); }

void Terminal::type(const std::string& keys) const {
  REQUIRE(::write(front.get(), keys.data(), keys.size()) == static_cast<ssize_t>(keys.size()));
}

std::string Terminal::shown() const {
  std::string text;
  char buffer[65536];
  ssize_t n;
  while ((n = ::read(front.get(), buffer, sizeof buffer)) > 0) text.append(buffer, static_cast<std::size_t>(n));
  return text;
}

}  // namespace ddrun::test
