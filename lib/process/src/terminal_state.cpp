#include "terminal_state.hpp"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

namespace ddrun::process {

bool TerminalState::in_foreground(int fd) { return ::tcgetpgrp(fd) == ::getpgrp(); }

void TerminalState::save() {
  terminal_ = -1;
  for (int fd = 0; fd < 3; ++fd) {
    flags_[static_cast<std::size_t>(fd)] = ::fcntl(fd, F_GETFL);
    if (terminal_ < 0 && ::tcgetattr(fd, &settings_) == 0 && in_foreground(fd)) terminal_ = fd;
  }
}

bool TerminalState::is_unchanged() const {
  termios now{};
  return ::tcgetattr(terminal_, &now) != 0 ||
         (now.c_iflag == settings_.c_iflag && now.c_oflag == settings_.c_oflag && now.c_cflag == settings_.c_cflag &&
          now.c_lflag == settings_.c_lflag && ::memcmp(now.c_cc, settings_.c_cc, sizeof now.c_cc) == 0);
}

void TerminalState::restore(bool settings_too) const {
  for (int fd = 0; fd < 3; ++fd) {
    const int before = flags_[static_cast<std::size_t>(fd)];
    const int now = ::fcntl(fd, F_GETFL);
    if (before < 0 || now < 0 || (before & O_NONBLOCK) != 0 || (now & O_NONBLOCK) == 0) continue;
    if (::isatty(fd) == 0 || in_foreground(fd)) ::fcntl(fd, F_SETFL, now & ~O_NONBLOCK);
  }
  if (!settings_too || !is_saved() || !in_foreground(terminal_) || is_unchanged()) return;
  // If the terminal were given to another group in between, SIGTTOU would stop this process.
  sigset_t output_stop;
  sigset_t before;
  ::sigemptyset(&output_stop);
  ::sigaddset(&output_stop, SIGTTOU);
  ::sigprocmask(SIG_BLOCK, &output_stop, &before);
  ::tcsetattr(terminal_, TCSANOW, &settings_);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace ddrun::process
