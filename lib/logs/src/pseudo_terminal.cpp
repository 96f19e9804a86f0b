#include "pseudo_terminal.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "ddrun/base/text.hpp"

namespace ddrun::logs {

namespace {

constexpr unsigned short min_columns = 20;

winsize as_winsize(ScreenSize size) {
  winsize result{};
  result.ws_row = size.rows;
  result.ws_col = size.columns;
  return result;
}

unsigned short number_in(const char* variable, unsigned short fallback) {
  const char* text = std::getenv(variable);
  const long number = text != nullptr ? std::strtol(text, nullptr, 10) : 0;
  return number > 0 && number < 10'000 ? static_cast<unsigned short>(number) : fallback;
}

/// TIOCGPTPEER also works where /dev/pts belongs to another mount (a container with a terminal from outside).
int open_slave(int master) {
  const int flags = O_RDWR | O_NOCTTY | O_CLOEXEC;
  const int slave = ::ioctl(master, TIOCGPTPEER, flags);
  if (slave >= 0) return slave;
  int number = 0;  // before Linux 4.13, and in sandboxes
  if (::ioctl(master, TIOCGPTN, &number) != 0) return -1;
  return ::open(concat("/dev/pts/", number).c_str(), flags);
}

}  // namespace

ScreenSize ScreenSize::without_prefix(std::size_t prefix) const {
  const std::size_t left = columns > prefix ? columns - prefix : 0;
  return {rows, std::max(min_columns, static_cast<unsigned short>(left))};
}

ScreenSize screen_size(int fd) {
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return {size.ws_row, size.ws_col};
  const ScreenSize defaults;
  return {number_in("LINES", defaults.rows), number_in("COLUMNS", defaults.columns)};
}

Result<PseudoTerminal> PseudoTerminal::open(ScreenSize size, const termios* input) {
  const auto failed = [] { return fail_errno(Errc::unavailable, "cannot make a pseudo-terminal", errno); };
  PseudoTerminal made;
  made.master.reset(::open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC));
  const int master = made.master.get();
  int locked = 0;
  if (!made.master || ::ioctl(master, TIOCSPTLCK, &locked) != 0) return failed();
  termios settings{};
  if (::tcgetattr(master, &settings) != 0) return failed();
  if (input != nullptr) settings = *input;
  else settings.c_lflag &= ~static_cast<tcflag_t>(ECHO | ECHOE | ECHOK | ECHONL);
  settings.c_oflag &= ~static_cast<tcflag_t>(OPOST);
  if (::tcsetattr(master, TCSANOW, &settings) != 0) return failed();
  resize(made.master, size);
  made.slave.reset(open_slave(master));
  if (!made.slave) return failed();
  return made;
}

void resize(const UniqueFd& master, ScreenSize size) {
  const winsize window = as_winsize(size);
  ::ioctl(master.get(), TIOCSWINSZ, &window);
}

}  // namespace ddrun::logs
