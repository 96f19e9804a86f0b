#include "ddrun/helper/run.hpp"

#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/process/v2/process.hpp>
#include <boost/version.hpp>
#include <cerrno>
#include <optional>
#include <utility>

#include "children.hpp"
#include "ddrun/base/io_context.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"

// Up to Boost 1.85 Process v2 has to be compiled by its user, once; later it is a library.
#if BOOST_VERSION < 108600
#include <boost/process/v2/src.hpp>
#endif

namespace ddrun::helper {

namespace {

using boost::system::error_code;

/// Interval of waitpid() where pidfds are not available.
constexpr Milliseconds poll_interval{5};

/// An unnamed file for a standard stream: it does not fill up like a pipe and leaves nothing behind. Its number is
/// above 2, since it becomes 0, 1 or 2.
Result<UniqueFd> make_stream_file() {
  if (const UniqueFd file(::memfd_create("ddrun helper", MFD_CLOEXEC)); file) return duplicate(file.get());
  // A kernel before 3.17, or one that forbids executable memfds.
  const std::unique_ptr<FILE, int (*)(FILE*)> temporary(::tmpfile(), ::fclose);
  if (!temporary) return fail_errno(Errc::unavailable, "no place for what it prints", errno);
  return duplicate(::fileno(temporary.get()));
}

std::string content_of(const UniqueFd& file, std::size_t max_bytes) {
  struct stat info {};
  ::fstat(file.get(), &info);
  std::string text(std::min(max_bytes, static_cast<std::size_t>(info.st_size)), '\0');
  const ssize_t got = ::pread(file.get(), text.data(), text.size(), 0);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

class Helper : public std::enable_shared_from_this<Helper> {
 public:
  Helper(const boost::asio::any_io_executor& executor, Limits limits, OnEnd on_end)
      : limits_(limits), on_end_(std::move(on_end)), timer_(executor) {}

  void start(const std::vector<std::string>& argv, const std::string& input) {
    name_ = argv[0];
    if (const auto started = try_start(argv, input); !started) {
      return boost::asio::post(timer_.get_executor(), [self = shared_from_this(), error = started.error()] {
        self->finish(tl::unexpected(error));
      });
    }
    deadline_ = Clock::now() + limits_.time;
    arm_timer();
    if (!process_) return;
    process_->async_wait([self = shared_from_this()](const error_code& ec, int) {
      if (self->pid_ <= 0) return;
      if (ec) self->on_exited(std::nullopt);
      else self->on_exited(self->process_->native_exit_code());
    });
  }

  /// Kills the helper if it still runs; on_end_ is not called.
  void cancel() {
    on_end_ = nullptr;
    if (pid_ > 0) kill_and_reap();
  }

 private:
  Result<void> try_start(const std::vector<std::string>& argv, const std::string& input) {
    for (UniqueFd& stream : streams_) stream = TRY(make_stream_file());
    if (!write_all(streams_[0].get(), input.data(), input.size()) || ::lseek(streams_[0].get(), 0, SEEK_SET) != 0) {
      return fail_errno(Errc::unavailable, concat("no place for what ", argv[0], " is to read"), errno);
    }
    pid_ = TRY(spawn(argv, {streams_[0].get(), streams_[1].get(), streams_[2].get()}, false));
    const rlimit size{limits_.output, limits_.output};
    ::prlimit(pid_, RLIMIT_FSIZE, &size, nullptr);  // fails only if the limit is already lower
    // Not started by Boost's launchers: they fork, and leak the child without pidfds.
    UniqueFd pidfd(open_pidfd(pid_));
    try {
      if (pidfd) process_.emplace(timer_.get_executor(), pid_, pidfd.get());
      [[maybe_unused]] const int owned = pidfd.release();
    } catch (const boost::system::system_error&) {  // no epoll watches left
    }
    return {};
  }

  void arm_timer() {
    timer_.expires_at(process_ ? deadline_ : std::min(deadline_, Clock::now() + poll_interval));
    timer_.async_wait([self = shared_from_this()](const error_code& ec) {
      if (ec || self->pid_ <= 0) return;
      int status = 0;
      const pid_t got = self->process_ ? 0 : ::waitpid(self->pid_, &status, WNOHANG);
      if (got != 0) return self->on_exited(got > 0 ? std::optional(status) : std::nullopt);
      if (Clock::now() < self->deadline_) return self->arm_timer();
      self->kill_and_reap();
      self->finish(
          fail(Errc::timeout, concat(self->name_, " did not end within ", format_duration(self->limits_.time))));
    });
  }

  /// `status`: nullopt if it was reaped elsewhere.
  void on_exited(std::optional<int> status) {
    const auto early_status = unregister();
    if (!status) status = early_status;
    if (!status) return finish(fail(Errc::unavailable, concat(name_, " has ended, and its status was read elsewhere")));
    finish(Output{exit_status_from_wait(*status), content_of(streams_[1], limits_.output),
                  content_of(streams_[2], limits_.output)});
  }

  void kill_and_reap() {
    const pid_t pid = pid_;
    // After it was reaped the pid may be reused.
    if (unregister() || ::waitpid(pid, nullptr, WNOHANG) != 0) return;
    ::kill(pid, SIGKILL);
    while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }

  /// Unregisters the helper; returns its wait status if reap() has reaped it.
  std::optional<int> unregister() {
    timer_.cancel();
    if (process_) process_->detach();  // otherwise Boost's destructor would kill a process that reuses the pid
    return helper::unregister(std::exchange(pid_, -1));
  }

  void finish(Result<Output> result) {
    if (const auto on_end = std::exchange(on_end_, nullptr)) on_end(std::move(result));
  }

  Limits limits_;
  OnEnd on_end_;
  boost::asio::steady_timer timer_;
  Deadline deadline_;
  std::string name_;
  UniqueFd streams_[3];
  std::optional<boost::process::v2::process> process_;
  pid_t pid_ = -1;  ///< -1 once it has ended
};

}  // namespace

Running start(boost::asio::any_io_executor executor, const std::vector<std::string>& argv, Limits limits, OnEnd on_end,
              const std::string& input) {
  auto helper = std::make_shared<Helper>(executor, limits, std::move(on_end));
  helper->start(argv, input);
  return {helper.get(), [helper](void*) { helper->cancel(); }};
}

Result<Output> run(const std::vector<std::string>& argv, Limits limits, const std::string& input) {
  const auto io = TRY(make_io_context());
  std::optional<Result<Output>> result;
  const auto helper = start(
      io->get_executor(), argv, limits, [&](Result<Output> got) { result = std::move(got); }, input);
  io->run();
  if (!result) return fail(Errc::unavailable, concat("cannot wait for ", argv[0]));
  return std::move(*result);
}

}  // namespace ddrun::helper
