#include "own_signals.hpp"

#include <signal.h>
#include <unistd.h>

namespace ddrun::remote {

namespace {

using boost::asio::posix::stream_descriptor;

/// Slurm and others signal every process of a job; the guard passes the same one on.
constexpr std::chrono::seconds echo_time{1};

}  // namespace

OwnSignals::OwnSignals(const boost::asio::any_io_executor& executor, process::AgentContext& context, Events events)
    : context_(context),
      events_(std::move(events)),
      signals_(executor,
               [this](const process::SignalEvent& event) {
                 if (event.signal == SIGCHLD) events_.on_child();
                 else arrived(event.signal, false);
               }),
      guard_messages_(executor),
      sweeper_life_(executor) {}

Result<void> OwnSignals::open() {
  if (auto opened = signals_.open(); !opened) return opened;
  boost::system::error_code ec;
  guard_messages_.assign(context_.guard_messages.release(), ec);
  if (!ec) sweeper_life_.assign(context_.sweeper_life.release(), ec);
  if (ec) return fail(Errc::unavailable, "cannot watch ddrun's own processes: " + ec.message(), ec);
  read_guard_messages();
  sweeper_life_.async_wait(stream_descriptor::wait_read, [this](const boost::system::error_code& failed) {
    if (!failed) events_.on_parent_lost("sweeper");
  });
  return {};
}

void OwnSignals::read_guard_messages() {
  guard_messages_.async_wait(stream_descriptor::wait_read, [this](const boost::system::error_code& ec) {
    if (ec) return;
    process::SignalMessage message;
    ssize_t n;
    while ((n = ::read(guard_messages_.native_handle(), &message, sizeof message)) == sizeof message) {
      arrived(message.signal, true);
    }
    if (n == 0) {
      if (::getppid() == context_.shared->sweeper_pid) ::kill(::getppid(), SIGCONT);
      events_.on_parent_lost("guard");
      return;
    }
    read_guard_messages();
  });
}

void OwnSignals::arrived(int signal, bool from_guard) {
  auto& heard = heard_[signal];
  const auto now = Clock::now();
  if (heard.from_guard != from_guard && now - heard.at < echo_time) return;
  heard = {now, from_guard};
  events_.on_signal(signal);
}

}  // namespace ddrun::remote
