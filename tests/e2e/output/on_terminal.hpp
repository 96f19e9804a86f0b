#pragma once

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "../job.hpp"
#include "ddrun/test/terminal.hpp"

namespace ddrun::test {

/// A run on a terminal of its own.
struct OnTerminal : Terminal {
  /// `plain`: as without a terminal lines are neither folded nor coloured.
  explicit OnTerminal(bool plain = true) {
    options.own_group = false;
    options.in_child = [fd = tty.get(), plain] {
      ::setenv("TERM", "xterm", 1);
      if (plain) ::setenv("DDRUN_FOLD", "never", 1);
      if (plain) ::setenv("NO_COLOR", "1", 1);
      else ::unsetenv("NO_COLOR");
      ::setsid();
      ::ioctl(fd, TIOCSCTTY, 0);
      for (int stream = 0; stream < 3; ++stream) ::dup2(fd, stream);
    };
  }

  /// What has come to the screen so far.
  std::string& screen() { return text += shown(); }
  bool wait_for(const std::string& part) {
    return wait_until([&] { return has(screen(), part); });
  }

  RunOptions options;
  std::string text;
};

}  // namespace ddrun::test
