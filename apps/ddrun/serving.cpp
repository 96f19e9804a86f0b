#include "serving.hpp"

#include <sys/signalfd.h>
#include <unistd.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <memory>

#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/shared_output.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/logs/console.hpp"

namespace ddrun {

namespace {

namespace asio = boost::asio;

/// Limit in bytes of queued warnings for stderr.
constexpr std::size_t warnings_high = std::size_t{64} << 10U;

/// The next signal of `signals`, a signalfd; 0 if none is pending.
int next_signal(int signals) {
  signalfd_siginfo info{};
  ssize_t n;
  do n = ::read(signals, &info, sizeof info);
  while (n < 0 && errno == EINTR);
  return n == static_cast<ssize_t>(sizeof info) ? static_cast<int>(info.ssi_signo) : 0;
}

/// Messages of this thread to stderr without blocking; dropped above the limit.
class NonBlockingMessages {
 public:
  explicit NonBlockingMessages(const asio::any_io_executor& executor)
      : console_(std::make_shared<logs::Console>(executor, STDERR_FILENO, warnings_high)) {
    set_message_sink([console = console_](std::string_view line) {
      if (console->has_back_pressure()) return;
      console->add(line);
      console->flush();
    });
  }
  ~NonBlockingMessages() {
    set_message_sink({});
    console_->close();
  }
  NonBlockingMessages(const NonBlockingMessages&) = delete;
  NonBlockingMessages& operator=(const NonBlockingMessages&) = delete;

 private:
  std::shared_ptr<logs::Console> console_;
};

}  // namespace

std::string stats_line(std::string_view name, unsigned long long number) { return concat(name, ' ', number, '\n'); }

Serving::Serving() {
  ::sigemptyset(&signals_);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1}) {
    // Signals ignored by the parent, as with nohup, stay ignored.
    struct sigaction action {};
    if (::sigaction(signal, nullptr, &action) != 0 || action.sa_handler != SIG_IGN) ::sigaddset(&signals_, signal);
  }
  ::sigaddset(&signals_, SIGPIPE);  // blocked, but not read
  ::sigprocmask(SIG_BLOCK, &signals_, nullptr);
  ::sigdelset(&signals_, SIGPIPE);
}

std::function<void(const std::string&)> Serving::warn() {
  return [this](const std::string& text) { asio::post(io_, [text] { say(Level::warning, text); }); };
}

bool Serving::serve(int signal_fd, const std::function<std::string()>& stats) {
  asio::posix::stream_descriptor signals(io_, signal_fd);
  bool written = true;
  const std::function<void()> wait = [&] {
    signals.async_wait(asio::posix::stream_descriptor::wait_read, [&](const boost::system::error_code& failed) {
      if (failed) return;
      while (const int signal = next_signal(signals.native_handle())) {
        const bool end = signal != SIGUSR1;
        if (end) set_ending();
        if (stats && (!end || written)) written = write_shared(STDOUT_FILENO, stats() + "\n") && written;
        if (end) return io_.stop();
      }
      wait();
    });
  };
  wait();
  io_.run();
  return written;
}

int Serving::run(const std::vector<std::string>& addresses, const std::function<std::string()>& stats) {
  const NonBlockingMessages messages(io_.get_executor());
  UniqueFd signals(::signalfd(-1, &signals_, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals) {
    say_error(concat("cannot receive signals: ", std::strerror(errno)));
    return exit_codes::launcher_failed;
  }
  std::string greeting = "listening on";
  for (const auto& address : addresses) greeting += " " + address;
  if (write_shared(STDOUT_FILENO, greeting + "\n") && serve(signals.release(), stats)) return exit_codes::success;
  say_error("cannot write to the standard output");
  return exit_codes::launcher_failed;
}

}  // namespace ddrun
