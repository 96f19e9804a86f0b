#include "ddrun/process/signal_source.hpp"

#include <errno.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <utility>

namespace ddrun::process {

sigset_t handled_signals() {
  sigset_t set;
  ::sigfillset(&set);
  // Faults of our own must end us; STOP and KILL cannot be had; the terminal's TTIN and TTOU and the timers are not
  // meant for workers; a closed pipe is an error value.
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS, SIGKILL, SIGSTOP, SIGPIPE,
                           SIGALRM, SIGVTALRM, SIGPROF, SIGTTIN, SIGTTOU, SIGXCPU, SIGXFSZ}) {
    ::sigdelset(&set, signal);
  }
  // nohup, and shells that start jobs in the background, ask us to ignore HUP, INT or QUIT: so be it.
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT}) {
    struct sigaction action {};
    if (::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) ::sigdelset(&set, signal);
  }
  return set;
}

void block_handled_signals() {
  const sigset_t set = handled_signals();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

SignalSource::SignalSource(boost::asio::any_io_executor executor, OnSignal on_signal)
    : fd_(std::move(executor)), on_signal_(std::move(on_signal)) {}

Result<void> SignalSource::open() {
  const sigset_t set = handled_signals();
  const int fd = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd < 0) return fail_errno(Errc::unavailable, "cannot receive signals", errno);
  boost::system::error_code ec;
  fd_.assign(fd, ec);
  if (ec) {
    ::close(fd);
    return fail(Errc::unavailable, "cannot receive signals: " + ec.message(), ec);
  }
  wait();
  return {};
}

void SignalSource::wait() {
  fd_.async_wait(boost::asio::posix::stream_descriptor::wait_read, [this](const boost::system::error_code& ec) {
    if (ec) return;
    signalfd_siginfo info[16];
    ssize_t n;
    while ((n = ::read(fd_.native_handle(), info, sizeof info)) > 0) {
      for (std::size_t i = 0; i < static_cast<std::size_t>(n) / sizeof info[0]; ++i) {
        on_signal_({static_cast<int>(info[i].ssi_signo), static_cast<pid_t>(info[i].ssi_pid)});
      }
    }
    wait();
  });
}

}  // namespace ddrun::process
