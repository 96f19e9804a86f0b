#include "ddrun/process/signals_heard.hpp"

#include <signal.h>
#include <unistd.h>

#include <utility>

namespace ddrun::process {

namespace {

using boost::asio::posix::stream_descriptor;

/// Within this time the same signal on another way is that one, and not a second and third one.
constexpr std::chrono::seconds echo_time{1};

}  // namespace

SignalsHeard::SignalsHeard(boost::asio::any_io_executor executor, AgentContext& context, Listener listener)
    : context_(context),
      listener_(std::move(listener)),
      own_(executor, [this](const SignalEvent& event) { own_signal(event); }),
      guard_messages_(executor),
      sweeper_life_(executor) {}

Result<void> SignalsHeard::open(const std::set<int>& ending_signals, Milliseconds grace) {
  if (auto opened = own_.open(); !opened) return opened;
  boost::system::error_code ec;
  guard_messages_.assign(context_.guard_messages.release(), ec);
  if (!ec) sweeper_life_.assign(context_.sweeper_life.release(), ec);
  if (ec) return fail(Errc::unavailable, "cannot watch ddrun's own processes: " + ec.message(), ec);
  read_guard_messages();
  read_sweeper_life();
  context_.shared->agent_begins_to_listen(ending_signals, grace);
  return {};
}

void SignalsHeard::close() { context_.shared->agent_listens = false; }

void SignalsHeard::own_signal(const SignalEvent& event) {
  if (event.signal == SIGCHLD) listener_.child_ended(event.sender);
  else if (event.sender == context_.shared->sweeper_pid) arrived({event.signal, event.sender}, Way::sweeper);
  else arrived({event.signal, event.sender}, Way::own);
}

void SignalsHeard::read_guard_messages() {
  guard_messages_.async_wait(stream_descriptor::wait_read, [this](const boost::system::error_code& ec) {
    if (ec) return;
    SignalMessage message;
    ssize_t n;
    while ((n = ::read(guard_messages_.native_handle(), &message, sizeof message)) == sizeof message) {
      arrived(message, Way::guard);
    }
    if (n == 0) {
      // A stopped sweeper would stay behind for ever.
      if (::getppid() == context_.shared->sweeper_pid) ::kill(::getppid(), SIGCONT);
      listener_.parent_lost("guard", context_.shared->guard_pid);
      return;
    }
    read_guard_messages();
  });
}

void SignalsHeard::read_sweeper_life() {
  sweeper_life_.async_wait(stream_descriptor::wait_read, [this](const boost::system::error_code& ec) {
    if (!ec) listener_.parent_lost("sweeper", context_.shared->sweeper_pid);
  });
}

void SignalsHeard::arrived(SignalMessage message, Way way) {
  const bool ends_job = (context_.shared->ending_signals.load() & signal_bit(message.signal)) != 0;
  if (ends_job && way != Way::guard) {
    // Each way by itself: what comes on several is one signal, however late the others are.
    message.at_once = insistence_[way].is_meant(message.signal, message.sender, Clock::now());
  }
  if (message.at_once || !is_echo(message.signal, way)) listener_.signal(message);
}

bool SignalsHeard::is_echo(int signal, Way way) {
  Heard& heard = heard_[signal];
  const auto now = Clock::now();
  if (now - heard.at < echo_time && heard.ways.insert(way).second) return true;
  heard = {now, {way}};
  return false;
}

}  // namespace ddrun::process
