#include "ddrun/process/signals.hpp"

#include <sys/signalfd.h>
#include <unistd.h>

#include "ddrun/base/io_context.hpp"

namespace ddrun::process {

sigset_t handled_signals() {
  sigset_t set;
  ::sigfillset(&set);
  // Not handled: faults; STOP and KILL, which cannot be; the terminal's TTIN and TTOU and the timers, which are not
  // meant for workers; PIPE and XFSZ, which write() reports.
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS, SIGKILL, SIGSTOP, SIGPIPE,
                           SIGALRM, SIGVTALRM, SIGPROF, SIGTTIN, SIGTTOU, SIGXCPU, SIGXFSZ}) {
    ::sigdelset(&set, signal);
  }
  // nohup, and shells that start jobs in the background, set HUP, INT or QUIT to be ignored.
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
  const int err = assign_descriptor(fd_, UniqueFd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK)));
  if (err != 0) return fail_errno(Errc::unavailable, "cannot receive signals", err);
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

// ---- routes to the agent

namespace {

using boost::asio::posix::stream_descriptor;

/// Within this time the same signal by another route is the same event.
constexpr std::chrono::seconds max_route_delay{1};

}  // namespace

SignalReceiver::SignalReceiver(boost::asio::any_io_executor executor, AgentContext& context, Listener listener)
    : context_(context),
      listener_(std::move(listener)),
      direct_signals_(executor, [this](const SignalEvent& event) { on_direct_signal(event); }),
      guard_messages_(executor),
      sweeper_liveness_(executor) {}

Result<void> SignalReceiver::open(const std::set<int>& ending_signals, Milliseconds grace) {
  TRY(direct_signals_.open());
  int err = assign_descriptor(guard_messages_, std::move(context_.guard_messages));
  if (err == 0) err = assign_descriptor(sweeper_liveness_, std::move(context_.sweeper_liveness));
  if (err != 0) return fail_errno(Errc::unavailable, "cannot watch ddrun's own processes", err);
  read_guard_messages();
  watch_sweeper();
  context_.shared->begin_signal_handling(ending_signals, grace);
  return {};
}

void SignalReceiver::on_direct_signal(const SignalEvent& event) {
  if (event.signal == SIGCHLD) listener_.child_ended(event.sender);
  else if (event.sender == context_.shared->sweeper_pid) on_arrival({event.signal, event.sender}, Route::sweeper);
  else on_arrival({event.signal, event.sender}, Route::direct);
}

void SignalReceiver::read_guard_messages() {
  guard_messages_.async_wait(stream_descriptor::wait_read, [this](const boost::system::error_code& ec) {
    if (ec) return;
    SignalMessage message;
    ssize_t n;
    while ((n = ::read(guard_messages_.native_handle(), &message, sizeof message)) == sizeof message) {
      on_arrival(message, Route::guard);
    }
    if (n == 0) {
      // A stopped sweeper would never exit.
      if (::getppid() == context_.shared->sweeper_pid) ::kill(::getppid(), SIGCONT);
      listener_.parent_lost("guard", context_.shared->guard_pid);
      return;
    }
    read_guard_messages();
  });
}

void SignalReceiver::watch_sweeper() {
  sweeper_liveness_.async_wait(stream_descriptor::wait_read, [this](const boost::system::error_code& ec) {
    if (!ec) listener_.parent_lost("sweeper", context_.shared->sweeper_pid);
  });
}

void SignalReceiver::on_arrival(SignalMessage message, Route route) {
  const bool ends_job = (context_.shared->ending_signals.load() & signal_bit(message.signal)) != 0;
  if (ends_job && route != Route::guard) {
    // Counted for each route: copies of one signal by several routes are no repetition, however late they come.
    message.at_once = repeated_signals_[route].forces_kill(message.signal, message.sender, Clock::now());
  }
  if (message.at_once || !is_duplicate(message.signal, route)) listener_.signal(message);
}

bool SignalReceiver::is_duplicate(int signal, Route route) {
  LastArrival& last = last_arrivals_[signal];
  const auto now = Clock::now();
  if (now - last.at < max_route_delay && last.routes.insert(route).second) return true;
  last = {now, {route}};
  return false;
}

}  // namespace ddrun::process
