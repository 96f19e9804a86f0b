#include "ddrun/helper/coprocess.hpp"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <optional>
#include <utility>

#include "children.hpp"
#include "ddrun/base/byte_pipe.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/io_context.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun::helper {

namespace {

namespace asio = boost::asio;
using boost::system::error_code;

/// Interval of waitid() where pidfds are not available.
constexpr Milliseconds exit_poll_interval{20};
/// Time to exit after closing stdout, so that the status can be reported.
constexpr Milliseconds exit_timeout{1000};
/// Limit of queued input that the program has not read.
constexpr std::size_t max_unread_bytes = 4 * Coprocess::max_line_bytes;
constexpr std::size_t max_stderr_line_bytes = 500;

}  // namespace

class Coprocess::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(const asio::any_io_executor& executor, OnLine on_line, OnEnd on_end)
      : in_(executor),
        out_(executor),
        err_(executor),
        pidfd_(executor),
        timer_(executor),
        on_line_(std::move(on_line)),
        on_end_(std::move(on_end)) {}

  [[nodiscard]] pid_t pid() const { return pid_; }

  Result<void> start(const std::vector<std::string>& argv, const std::string& variable) {
    name_ = argv[0];
    // A socket for its stdin: writing to a broken pipe would raise SIGPIPE.
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
      return fail_errno(Errc::unavailable, concat("cannot start ", name_), errno);
    }
    UniqueFd parent_end(pair[0]), child_end(pair[1]);
    auto out = TRY(make_pipe());
    auto err = TRY(make_pipe());
    // The descriptors that become 0, 1 and 2 must be other ones.
    const auto in = TRY(duplicate(child_end.get()));
    const auto out_end = TRY(duplicate(out.write.get()));
    const auto err_end = TRY(duplicate(err.write.get()));
    pid_ = TRY(spawn(argv, {in.get(), out_end.get(), err_end.get()}, true, variable));
    const auto on_err = [this](std::string_view bytes) { read_stderr(bytes); };
    int failed = in_.open(std::move(parent_end));
    if (failed == 0) failed = err_.open(std::move(err.read), on_err, [] {});
    if (failed == 0) {
      failed = out_.open(
          std::move(out.read), [this](std::string_view bytes) { read_lines(bytes); }, [this] { on_stdout_closed(); });
    }
    if (failed != 0) {
      close();
      (void)kill_and_reap();
      return fail_errno(Errc::unavailable, concat("cannot talk to ", name_), failed);
    }
    if (UniqueFd fd(open_pidfd(pid_)); fd) (void)assign_descriptor(pidfd_, std::move(fd));
    watch_exit();
    return {};
  }

  void send_line(std::string_view line) {
    if (pid_ <= 0) return;
    if (in_.queued() + line.size() > max_unread_bytes) {
      asio::post(timer_.get_executor(),
                 [self = shared_from_this()] { self->kill_with_reason("does not read its stdin"); });
      return;
    }
    in_.write(concat(line, "\n"));
  }

  void cancel() {
    on_end_ = nullptr;
    on_line_ = nullptr;
    close();
    if (pid_ > 0) (void)kill_and_reap();
  }

 private:
  /// Calls on_line_ for each complete line, until the coprocess has ended.
  void read_lines(std::string_view bytes) {
    const auto keep = shared_from_this();  // the callbacks may destroy the Coprocess
    for (const char c : bytes) {
      if (c != '\n') {
        line_ += c;
        if (line_.size() <= max_line_bytes) continue;
        return kill_with_reason("printed a line that is too long");
      }
      const std::string line = std::exchange(line_, {});
      if (const auto on_line = on_line_) on_line(line);
      if (pid_ <= 0 || !on_line_) return;
    }
  }

  void read_stderr(std::string_view bytes) {
    for (const char c : bytes) {
      if (c == '\n') {
        if (!trim(stderr_line_).empty()) last_stderr_line_ = stderr_line_;
        stderr_line_.clear();
      } else if (stderr_line_.size() < max_stderr_line_bytes) {
        stderr_line_ += c;
      }
    }
  }

  void on_stdout_closed() {
    if (!closed_at_) closed_at_ = Clock::now();
    poll_exit(!pidfd_.is_open());
  }

  void watch_exit() {
    if (!pidfd_.is_open()) return poll_exit(true);
    pidfd_.async_wait(asio::posix::stream_descriptor::wait_read, [self = shared_from_this()](const error_code& ec) {
      if (!ec && self->pid_ > 0) self->on_exited();
    });
  }

  /// Polls for the exit where pidfds are not available, and for a program that has closed its stdout but runs on.
  void poll_exit(bool for_exit) {
    timer_.expires_after(closed_at_ && !for_exit ? exit_timeout : exit_poll_interval);
    timer_.async_wait([self = shared_from_this(), for_exit](const error_code& ec) {
      if (ec || self->pid_ <= 0) return;
      if (for_exit) {
        siginfo_t info{};
        const auto got = ::waitid(P_PID, static_cast<id_t>(self->pid_), &info, WEXITED | WNOHANG | WNOWAIT);
        if (got != 0 || info.si_pid != 0) return self->on_exited();
      }
      if (self->closed_at_ && Clock::now() - *self->closed_at_ >= exit_timeout) {
        return self->kill_with_reason("has closed its stdout");
      }
      self->poll_exit(for_exit);
    });
  }

  void on_exited() {
    // Output written before the exit.
    err_.drain();
    out_.drain();
    if (pid_ <= 0) return;
    // The status is not available if this process ignores SIGCHLD.
    const auto status = kill_and_reap();
    report_end(status ? describe(exit_status_from_wait(*status)) : "has ended");
  }

  void kill_with_reason(std::string_view what) {
    if (pid_ <= 0) return;
    (void)kill_and_reap();
    report_end(what);
  }

  void report_end(std::string_view what) {
    close();
    const auto on_end = std::exchange(on_end_, nullptr);
    on_line_ = nullptr;
    if (!on_end) return;
    if (!trim(stderr_line_).empty()) last_stderr_line_ = stderr_line_;
    const std::string stderr_line = plain_line(last_stderr_line_);
    on_end(concat(name_, " ", what, stderr_line.empty() ? "" : ": ", stderr_line));
  }

  /// Kills its process group and reaps it; returns the wait status, if available.
  std::optional<int> kill_and_reap() {
    const pid_t pid = std::exchange(pid_, -1);
    siginfo_t info{};
    int status = 0;
    bool waited = false;
    // The group id cannot be reused before the process is reaped.
    if (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0) {
      ::kill(-pid, SIGKILL);
      while (!(waited = ::waitpid(pid, &status, 0) == pid) && errno == EINTR) {
      }
    }
    const auto early_status = unregister(pid);
    return waited ? std::optional(status) : early_status;
  }

  void close() {
    error_code ignored;
    in_.close();
    out_.close();
    err_.close();
    pidfd_.close(ignored);
    timer_.cancel();
  }

  ByteWriter in_;
  ByteReader out_, err_;
  asio::posix::stream_descriptor pidfd_;
  asio::steady_timer timer_;
  OnLine on_line_;
  OnEnd on_end_;
  std::string name_, line_, stderr_line_, last_stderr_line_;
  std::optional<Deadline> closed_at_;
  pid_t pid_ = -1;
};

Coprocess::Coprocess(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Coprocess::~Coprocess() { impl_->cancel(); }
void Coprocess::send_line(std::string_view line) { impl_->send_line(line); }
pid_t Coprocess::pid() const { return impl_->pid(); }

Result<std::unique_ptr<Coprocess>> Coprocess::start(const asio::any_io_executor& executor,
                                                    const std::vector<std::string>& argv, const std::string& variable,
                                                    OnLine on_line, OnEnd on_end) {
  auto impl = std::make_shared<Impl>(executor, std::move(on_line), std::move(on_end));
  TRY(impl->start(argv, variable));
  return std::unique_ptr<Coprocess>(new Coprocess(std::move(impl)));
}

}  // namespace ddrun::helper
