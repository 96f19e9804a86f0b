#include "ddrun/base/quiet_thread.hpp"

#include <pthread.h>
#include <signal.h>

#include <system_error>
#include <utility>

#include "ddrun/base/text.hpp"

namespace ddrun {

Result<std::thread> start_quiet_thread(const char* name, std::function<void()> run) {
  // The new thread has the mask of the one that makes it.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  Result<std::thread> started;
  try {
    started = std::thread([name, run = std::move(run)] {
      ::pthread_setname_np(::pthread_self(), name);
      run();
    });
  } catch (const std::system_error& error) {
    started =
        fail(Errc::unavailable, concat("cannot start the thread ", name, ": ", error.code().message()), error.code());
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

}  // namespace ddrun
