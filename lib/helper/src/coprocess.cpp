#include "ddrun/helper/coprocess.hpp"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <optional>
#include <utility>

#include "children.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/base/exit_status.hpp"
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
    auto out = make_pipe();
    if (!out) return tl::unexpected(out.error());
    auto err = make_pipe();
    if (!err) return tl::unexpected(err.error());
    // The descriptors that become 0, 1 and 2 must be other ones.
    auto in = duplicate(child_end.get());
    auto out_end = duplicate(out->write.get());
    auto err_end = duplicate(err->write.get());
    for (const auto* end : {&in, &out_end, &err_end}) {
      if (!*end) return tl::unexpected(end->error());
    }
    const auto pid = spawn(argv, {in->get(), out_end->get(), err_end->get()}, true, variable);
    if (!pid) return tl::unexpected(pid.error());
    pid_ = *pid;
    error_code ec;
    in_.assign(asio::local::stream_protocol(), parent_end.release(), ec);
    if (!ec) out_.assign(out->read.release(), ec);
    if (!ec) err_.assign(err->read.release(), ec);
    if (!ec) out_.non_blocking(true, ec);
    if (!ec) err_.non_blocking(true, ec);
    if (ec) {
      (void)kill_and_reap();
      return fail(Errc::unavailable, concat("cannot talk to ", name_, ": ", ec.message()), ec);
    }
    if (UniqueFd fd(open_pidfd(pid_)); fd) {
      pidfd_.assign(fd.get(), ec);
      if (!ec) [[maybe_unused]]
        const int owned = fd.release();
    }
    read_out();
    read_err();
    watch_exit();
    return {};
  }

  void send_line(std::string_view line) {
    if (pid_ <= 0) return;
    if (write_queue_.size() + line.size() > max_unread_bytes) {
      asio::post(timer_.get_executor(),
                 [self = shared_from_this()] { self->kill_with_reason("does not read its stdin"); });
      return;
    }
    write_queue_.append(line).push_back('\n');
    write();
  }

  void cancel() {
    on_end_ = nullptr;
    on_line_ = nullptr;
    close();
    if (pid_ > 0) (void)kill_and_reap();
  }

 private:
  void write() {
    if (writing_ || pid_ <= 0 || write_queue_.empty()) return;
    writing_ = true;
    write_buffer_ = std::exchange(write_queue_, {});
    asio::async_write(in_, asio::buffer(write_buffer_), [self = shared_from_this()](const error_code& ec, std::size_t) {
      self->writing_ = false;
      // A write error means that it closed its stdin; its exit is handled elsewhere.
      if (!ec) self->write();
    });
  }

  void read_out() {
    out_.async_read_some(asio::buffer(out_buffer_),
                         [self = shared_from_this()](const error_code& ec, std::size_t size) {
                           if (self->pid_ <= 0) return;
                           if (ec) return self->on_stdout_closed();
                           if (self->read_lines(size)) self->read_out();
                         });
  }

  void read_err() {
    err_.async_read_some(asio::buffer(err_buffer_),
                         [self = shared_from_this()](const error_code& ec, std::size_t size) {
                           if (self->pid_ <= 0 || ec) return;
                           self->read_stderr(size);
                           self->read_err();
                         });
  }

  /// Calls on_line_ for each complete line. False once the coprocess has ended.
  bool read_lines(std::size_t size) {
    for (const char c : std::string_view(out_buffer_.data(), size)) {
      if (c != '\n') {
        line_ += c;
        if (line_.size() <= max_line_bytes) continue;
        kill_with_reason("printed a line that is too long");
        return false;
      }
      const std::string line = std::exchange(line_, {});
      // The callback may destroy the Coprocess.
      const auto keep = shared_from_this();
      if (const auto on_line = on_line_) on_line(line);
      if (pid_ <= 0 || !on_line_) return false;
    }
    return true;
  }

  void read_stderr(std::size_t size) {
    for (const char c : std::string_view(err_buffer_.data(), size)) {
      if (c == '\n') {
        if (!trim(stderr_line_).empty()) last_stderr_line_ = stderr_line_;
        stderr_line_.clear();
      } else if (stderr_line_.size() < max_stderr_line_bytes) {
        stderr_line_ += c;
      }
    }
  }

  void on_stdout_closed() {
    error_code ignored;
    out_.close(ignored);
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
    drain();
    if (pid_ <= 0) return;
    // The status is not available if this process ignores SIGCHLD.
    const auto status = kill_and_reap();
    report_end(status ? describe(exit_status_from_wait(*status)) : "has ended");
  }

  /// Reads output written before the exit.
  void drain() {
    error_code ec;
    while (err_.is_open()) {
      const std::size_t size = err_.read_some(asio::buffer(err_buffer_), ec);
      if (ec) break;
      read_stderr(size);
    }
    while (out_.is_open()) {
      const std::size_t size = out_.read_some(asio::buffer(out_buffer_), ec);
      if (ec || !read_lines(size)) break;
    }
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
    in_.close(ignored);
    out_.close(ignored);
    err_.close(ignored);
    pidfd_.close(ignored);
    timer_.cancel();
  }

  asio::local::stream_protocol::socket in_;
  asio::posix::stream_descriptor out_, err_, pidfd_;
  asio::steady_timer timer_;
  OnLine on_line_;
  OnEnd on_end_;
  std::string name_, write_queue_, write_buffer_, line_, stderr_line_, last_stderr_line_;
  std::array<char, 4096> out_buffer_{}, err_buffer_{};
  std::optional<Deadline> closed_at_;
  pid_t pid_ = -1;
  bool writing_ = false;
};

Coprocess::Coprocess(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Coprocess::~Coprocess() { impl_->cancel(); }
void Coprocess::send_line(std::string_view line) { impl_->send_line(line); }
pid_t Coprocess::pid() const { return impl_->pid(); }

Result<std::unique_ptr<Coprocess>> Coprocess::start(const asio::any_io_executor& executor,
                                                    const std::vector<std::string>& argv, const std::string& variable,
                                                    OnLine on_line, OnEnd on_end) {
  auto impl = std::make_shared<Impl>(executor, std::move(on_line), std::move(on_end));
  if (auto started = impl->start(argv, variable); !started) return tl::unexpected(started.error());
  return std::unique_ptr<Coprocess>(new Coprocess(std::move(impl)));
}

}  // namespace ddrun::helper
