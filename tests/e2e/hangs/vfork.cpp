// Puts its caller into uninterruptible sleep, as a dead file server does: the child of vfork() does not execute.

#include <unistd.h>

extern "C" void hang_in_vfork() {
  if (::vfork() == 0) {
    for (;;) ::pause();
  }
}
