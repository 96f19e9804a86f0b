#include "ddrun/base/event_thread.hpp"

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "ddrun/base/text.hpp"

namespace ddrun {

Result<std::thread> start_thread_signals_blocked(const char* name, std::function<void()> run) {
  // A thread inherits the signal mask of its creator.
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
    // The C library falls back from clone3 only where it is unknown, and the call has no other permission to lack.
    const char* const hint =
        error.code() != std::errc::operation_not_permitted
            ? ""
            : "; a sandbox forbids clone3, as Docker before 20.10.10 does: update it, or start the "
              "container with --security-opt seccomp=unconfined";
    started = fail(Errc::unavailable, concat("cannot start the thread ", name, ": ", error.code().message(), hint),
                   error.code());
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

Result<void> EventThread::open(const char* what) {
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  wakeup_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (epoll_ && wakeup_ && watch(EPOLL_CTL_ADD, wakeup_.get(), EPOLLIN, wakeup_token)) return {};
  return fail_errno(Errc::unavailable, what, errno);
}

Result<void> EventThread::start(const char* name, std::function<void()> run) {
  thread_ = TRY(start_thread_signals_blocked(name, std::move(run)));
  return {};
}

void EventThread::call(const std::function<void()>& what) {
  if (!started()) return what();
  const std::lock_guard caller(call_mutex_);
  std::unique_lock lock(mutex_);
  pending_ = &what;
  const std::uint64_t one = 1;
  while (::write(wakeup_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
  done_.wait(lock, [this] { return pending_ == nullptr; });
}

bool EventThread::watch(int operation, int fd, std::uint32_t events, std::uint64_t token) const {
  epoll_event event{};
  event.events = events;
  event.data.u64 = token;
  return ::epoll_ctl(epoll_.get(), operation, fd, &event) == 0;
}

void EventThread::forget(int fd) const { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

int EventThread::wait(std::span<epoll_event> events, int timeout) const {
  return ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout);
}

void EventThread::run_pending_call() {
  std::uint64_t count = 0;
  (void)!::read(wakeup_.get(), &count, sizeof count);
  const std::lock_guard lock(mutex_);
  if (pending_ == nullptr) return;
  (*pending_)();
  pending_ = nullptr;
  done_.notify_all();
}

}  // namespace ddrun
