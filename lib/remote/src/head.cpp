#include "ddrun/remote/head.hpp"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "ddrun/base/alarm.hpp"
#include "ddrun/base/event_thread.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/io_context.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/base/shared_output.hpp"
#include "ddrun/base/shutdown_timeouts.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/logs/line_assembler.hpp"
#include "ddrun/logs/rank_console.hpp"
#include "ddrun/process/child_watcher.hpp"
#include "ddrun/process/descriptor_limit.hpp"
#include "ddrun/process/launcher.hpp"
#include "ddrun/process/signals.hpp"
#include "link.hpp"
#include "protocol.hpp"
#include "remote_command.hpp"
#include "start_decision.hpp"

namespace ddrun::remote {

namespace {

/// Window of unacknowledged stdin bytes per host.
constexpr std::size_t input_window = std::size_t{256} << 10U;
/// Limit of hosts whose ddrun is being started: each costs an ssh handshake, here and on a shared gateway.
constexpr std::size_t max_opening = 32;
/// Doubled for each further try of a host, four times at most.
constexpr std::chrono::milliseconds first_retry_delay{250};
/// Three descriptors per ssh, and those to watch it.
constexpr std::size_t descriptors_per_host = 8;
using shutdown::head_close_timeout;
/// A longer wait for hosts is explained.
constexpr std::chrono::seconds wait_notice_delay{2};

// ---- file I/O on threads, since a disk may hang

/// Time without progress at the end after which a disk is given up.
constexpr std::chrono::seconds disk_stall_timeout{60};

void read_into(int pipe, int file) {
  std::array<char, 32 << 10> chunk;  // NOLINT: written by read
  for (;;) {
    const ssize_t n = ::read(file, chunk.data(), chunk.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0 || !write_all(pipe, chunk.data(), static_cast<std::size_t>(n))) return;
  }
}

/// Whether it is a regular file. Does not block: AT_STATX_DONT_SYNC does not contact a file server.
bool is_file(int fd) {
  struct statx info {};
  return ::statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &info) == 0 && S_ISREG(info.stx_mode);
}

/// Reads `file` from its position on a detached thread, so that a hanging disk blocks only that thread. Returns the
/// non-blocking read end of a pipe; end-of-file also on a read error. The thread ends when the returned end is closed,
/// or stays in a hanging read. `file` is borrowed and not closed, since close() may hang, too. Fails with `unavailable`
/// without descriptors or threads.
Result<UniqueFd> read_on_thread(int file) {
  auto pipe = make_pipe();
  if (!pipe) return tl::unexpected(std::move(pipe.error()));
  // Only this end: the thread blocks on a full pipe.
  if (::fcntl(pipe->read.get(), F_SETFL, O_NONBLOCK) != 0) {
    return fail_errno(Errc::unavailable, "cannot change a pipe", errno);
  }
  auto end = std::make_shared<UniqueFd>(std::move(pipe->write));
  auto thread = start_thread_signals_blocked("ddrun-input", [end, file] {
    read_into(end->get(), file);
    end->reset();
  });
  if (!thread) return tl::unexpected(std::move(thread.error()));
  thread->detach();
  return std::move(pipe->read);
}

/// Writes to a file on a detached thread, so that a hanging disk blocks only that thread. Its input is a pipe, which
/// gives back pressure.
class DiskWriter {
 public:
  /// `file` is borrowed and written at its position. Null if it is no regular file, or without descriptors or threads.
  [[nodiscard]] static std::unique_ptr<DiskWriter> start(int file);
  ~DiskWriter();
  DiskWriter(const DiskWriter&) = delete;
  DiskWriter& operator=(const DiskWriter&) = delete;

  /// The write end, blocking; reopen it by /proc/self/fd for non-blocking writes.
  [[nodiscard]] int input() const { return input_.get(); }
  /// Call after the last write to input(). Blocks until all is written, or there is no progress for a minute. Returns
  /// the error; empty on success.
  [[nodiscard]] std::string finish();

 private:
  struct Work;
  DiskWriter(UniqueFd input, std::shared_ptr<Work> work) : input_(std::move(input)), work_(std::move(work)) {}

  UniqueFd input_;
  std::shared_ptr<Work> work_;  ///< shared: the thread may stay in a hanging write
};

/// The state of the thread.
struct DiskWriter::Work {
  Work(UniqueFd from_pipe, UniqueFd last_bell, int to_file)
      : pipe(std::move(from_pipe)), last(std::move(last_bell)), file(to_file) {}

  void run();
  /// Waits for input; false at the end, after `last` was signalled.
  [[nodiscard]] bool wait() const;
  /// Writes `bytes`; returns the number that failed.
  std::size_t put(std::string_view bytes);

  const UniqueFd pipe;
  const UniqueFd last;  ///< readable once all is in the pipe; end-of-file would need all duplicates closed
  const int file;
  bool in_dropped_line = false;  ///< used by the thread: after a failed write the rest of that line is dropped, too
  std::mutex mutex;              ///< protects the members below
  std::condition_variable changed;
  std::uint64_t rounds = 0;
  int error = 0;  ///< of the last failed write
  bool done = false;
};

std::size_t DiskWriter::Work::put(std::string_view bytes) {
  if (in_dropped_line) {
    const std::size_t end = bytes.find('\n');
    in_dropped_line = end == std::string_view::npos;
    bytes.remove_prefix(in_dropped_line ? bytes.size() : end + 1);
  }
  while (!bytes.empty()) {
    const ssize_t n = ::write(file, bytes.data(), bytes.size());
    if (n >= 0) bytes.remove_prefix(static_cast<std::size_t>(n));
    else if (errno != EINTR) break;
  }
  if (!bytes.empty()) in_dropped_line = bytes.back() != '\n';
  return bytes.size();
}

bool DiskWriter::Work::wait() const {
  std::array<pollfd, 2> events{{{pipe.get(), POLLIN, 0}, {last.get(), POLLIN, 0}}};
  while (::poll(events.data(), events.size(), -1) < 0) {
    if (errno != EINTR && errno != ENOMEM) return false;
  }
  return (events[0].revents & POLLIN) != 0;
}

void DiskWriter::Work::run() {
  std::array<char, 64 << 10> chunk;  // NOLINT: written by read
  while (wait()) {
    const ssize_t n = ::read(pipe.get(), chunk.data(), chunk.size());
    const bool lost = n > 0 && put({chunk.data(), static_cast<std::size_t>(n)}) > 0;
    const int why = errno;
    const std::scoped_lock lock(mutex);
    if (lost) error = why;
    ++rounds;
    changed.notify_all();
  }
  const std::scoped_lock lock(mutex);
  done = true;
  changed.notify_all();
}

std::unique_ptr<DiskWriter> DiskWriter::start(int file) {
  struct stat info {};
  if (::fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) return nullptr;
  auto pipe = make_pipe();
  UniqueFd last(::eventfd(0, EFD_CLOEXEC));
  if (!pipe || !last) return nullptr;
  auto work = std::make_shared<Work>(std::move(pipe->read), std::move(last), file);
  auto thread = start_thread_signals_blocked("ddrun-disk", [work] { work->run(); });
  if (!thread) return nullptr;
  thread->detach();
  return std::unique_ptr<DiskWriter>(new DiskWriter(std::move(pipe->write), std::move(work)));
}

DiskWriter::~DiskWriter() = default;

std::string DiskWriter::finish() {
  const std::uint64_t one = 1;
  (void)!::write(work_->last.get(), &one, sizeof one);
  std::unique_lock lock(work_->mutex);
  while (!work_->done) {
    const std::uint64_t before = work_->rounds;
    if (!work_->changed.wait_for(lock, disk_stall_timeout, [&] { return work_->done || work_->rounds != before; })) {
      return "the disk takes nothing";
    }
  }
  return work_->error == 0 ? std::string() : std::strerror(work_->error);
}

// ---- standard input

/// Reads stdin, which is shared with the parent process, so its flags are not changed. Never blocks the caller, not
/// even on a disk. Must live as long as the event loop.
class HeadInput {
 public:
  HeadInput(boost::asio::any_io_executor executor, std::function<void(std::string_view)> on_bytes,
            std::function<void()> on_end)
      : executor_(std::move(executor)),
        ready_(executor_),
        background_timer_(executor_),
        on_bytes_(std::move(on_bytes)),
        on_end_(std::move(on_end)) {}

  /// Requests one chunk for on_bytes.
  void request();
  void stop();

 private:
  void open();
  /// 0, or the errno of epoll_ctl().
  int watch();
  void read_portion();
  void end();

  boost::asio::any_io_executor executor_;
  UniqueFd input_;
  boost::asio::posix::stream_descriptor ready_;  ///< an epoll set with the input; closed if the input is always ready
  boost::asio::steady_timer background_timer_;   ///< while another job of the shell has the terminal
  std::function<void(std::string_view)> on_bytes_;
  std::function<void()> on_end_;
  bool opened_ = false;
  bool waiting_ = false;
  bool ended_ = false;
};

void HeadInput::open() {
  opened_ = true;
  // Not reopened if it is a file: the position is shared with the shell, and some file systems contact their server in
  // epoll_ctl().
  if (!is_file(STDIN_FILENO)) {
    // A reopened descriptor may be non-blocking.
    input_ = UniqueFd(::open("/proc/self/fd/0", O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (!input_) {
      if (auto copy = duplicate(STDIN_FILENO)) input_ = std::move(*copy);
    }
    if (watch() != EPERM) return;
  }
  if (auto pipe = read_on_thread(STDIN_FILENO)) {
    input_ = std::move(*pipe);
    watch();
  } else if (auto copy = duplicate(STDIN_FILENO)) {
    input_ = std::move(*copy);
  }
}

int HeadInput::watch() {
  UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{};
  event.events = EPOLLIN;
  if (!set || ::epoll_ctl(set.get(), EPOLL_CTL_ADD, input_.get(), &event) != 0) return errno;
  return assign_descriptor(ready_, std::move(set));
}

void HeadInput::request() {
  if (waiting_ || ended_) return;
  if (!opened_) open();
  if (!input_) return end();
  waiting_ = true;
  if (ready_.is_open()) {
    ready_.async_wait(boost::asio::posix::stream_descriptor::wait_read, [this](const boost::system::error_code& ec) {
      waiting_ = false;
      if (!ec) read_portion();
    });
  } else {
    boost::asio::post(executor_, [this] {
      waiting_ = false;
      read_portion();
    });
  }
}

void HeadInput::read_portion() {
  if (ended_) return;
  if (::isatty(input_.get()) != 0 && process::job_is_in_background()) {
    background_timer_.expires_after(std::chrono::milliseconds(100));
    background_timer_.async_wait([this](const boost::system::error_code& ec) {
      if (!ec) request();
    });
    return;
  }
  std::array<char, 32 << 10> chunk;  // NOLINT: written by read
  ssize_t n;
  do {
    n = ::recv(input_.get(), chunk.data(), chunk.size(), MSG_DONTWAIT);
    if (n < 0 && errno == ENOTSOCK) n = ::read(input_.get(), chunk.data(), chunk.size());
  } while (n < 0 && errno == EINTR);
  if (n < 0 && errno == EAGAIN) return request();
  if (n <= 0) return end();
  on_bytes_({chunk.data(), static_cast<std::size_t>(n)});
}

void HeadInput::end() {
  if (ended_) return;
  stop();
  on_end_();
}

void HeadInput::stop() {
  ended_ = true;
  boost::system::error_code ignored;
  ready_.close(ignored);
  input_.reset();  // ends the reading thread
}

/// Stdout and stderr for the lines of all hosts and ddrun's own messages. Never blocks the caller, not even on a disk:
/// blocked pings would make all hosts treat the connection as lost. Must live as long as the event loop.
class HeadOutput {
 public:
  /// The incomplete last lines of a host's two streams.
  struct HostLines {
    std::string own_prefix;  ///< replaces the "ddrun: " of its ddrun's messages; empty: unchanged
    logs::LineAssembler out, err;
    std::vector<std::unique_ptr<logs::RankStream>> ranks;  ///< of its workers, if their lines are marked
  };
  enum class Stream { out, err };

  /// `mark`: before each line of a worker. `on_room` is called when queued output has been written.
  HeadOutput(const boost::asio::any_io_executor& executor, const LogSpec& log, std::string mark,
             const std::function<void()>& on_room);
  ~HeadOutput();
  HeadOutput(const HeadOutput&) = delete;
  HeadOutput& operator=(const HeadOutput&) = delete;

  /// Sets this as the message sink until close().
  void redirect_messages();
  void show(HostLines& host, Stream stream, std::string_view bytes);
  /// Writes the last line, also without a newline.
  void finish(HostLines& host);
  void flush();
  [[nodiscard]] std::size_t queued() const { return out_->console().queued() + err_->console().queued(); }
  [[nodiscard]] std::uint64_t written() const {
    return out_->console().written_bytes() + err_->console().written_bytes();
  }
  /// Above the high-water mark: pause the hosts.
  [[nodiscard]] bool is_congested() const {
    return out_->console().has_back_pressure() || err_->console().has_back_pressure();
  }
  void drop_queue() {
    out_->console().drop_queue();
    err_->console().drop_queue();
  }
  struct Loss {
    std::uint64_t bytes = 0;
    std::string why;  ///< empty: nothing was lost
  };
  /// Drops queued output. What a reader that has closed does not get is not lost.
  [[nodiscard]] Loss close();

 private:
  void add(HostLines& host, Stream stream, logs::Piece piece);
  [[nodiscard]] std::shared_ptr<logs::RankConsole> console_on(const boost::asio::any_io_executor& executor, int fd,
                                                              const LogSpec& log);
  [[nodiscard]] logs::RankStream& stream_of(HostLines& host, Stream stream, int rank, std::string_view prefix);

  const std::string mark_;
  const bool labelled_;
  std::vector<std::unique_ptr<DiskWriter>> disks_;  ///< for streams that are files
  std::shared_ptr<logs::RankConsole> out_;
  std::shared_ptr<logs::RankConsole> err_;  ///< the same object if both streams are the same file
};

constexpr std::size_t console_high = std::size_t{8} << 20U;
/// Of queued bytes while the hosts are read although the console takes nothing.
constexpr std::size_t max_read_ahead = 16 * console_high;

HeadOutput::HeadOutput(const boost::asio::any_io_executor& executor, const LogSpec& log, std::string mark,
                       const std::function<void()>& on_room)
    : mark_(std::move(mark)),
      labelled_(log.line_prefix_template.empty()),
      out_(console_on(executor, STDOUT_FILENO, log)),
      err_(logs::Console::same_file(STDOUT_FILENO, STDERR_FILENO) ? out_ : console_on(executor, STDERR_FILENO, log)) {
  for (const auto& ranks : {out_, err_}) {
    ranks->console().on_drained([ranks = ranks.get(), on_room] {
      ranks->flush();
      on_room();
    });
  }
}

std::shared_ptr<logs::RankConsole> HeadOutput::console_on(const boost::asio::any_io_executor& executor, int fd,
                                                          const LogSpec& log) {
  logs::RankConsoleOptions options;
  if (!mark_.empty()) options = logs::RankConsoleOptions(log, ::isatty(fd) == 1);
  options.queue_high = console_high;
  options.knows_ranks = false;
  if (auto disk = DiskWriter::start(fd)) disks_.push_back(std::move(disk));
  else return std::make_shared<logs::RankConsole>(executor, fd, std::move(options));
  return std::make_shared<logs::RankConsole>(executor, disks_.back()->input(), std::move(options));
}

HeadOutput::~HeadOutput() { set_message_sink({}); }

void HeadOutput::redirect_messages() {
  set_message_sink([this](std::string_view line) {
    err_->add_text(line);
    err_->flush_now();
  });
}

logs::RankStream& HeadOutput::stream_of(HostLines& host, Stream stream, int rank, std::string_view prefix) {
  const bool is_error = stream == Stream::err && out_ != err_;
  for (const auto& known : host.ranks) {
    if (known->rank == rank && known->is_error == is_error) return *known;
  }
  auto& added = *host.ranks.emplace_back(std::make_unique<logs::RankStream>());
  added.rank = added.position = rank;
  added.prefix = prefix;
  added.labelled = labelled_;
  if (const std::size_t colon = prefix.rfind(':'); colon != std::string_view::npos)
    added.scope = prefix.substr(1, colon - 1);
  added.is_error = is_error;
  (is_error ? err_ : out_)->open_stream(added);
  return added;
}

/// A line of a worker is marked, or has its host already; those of ddrun itself get it here.
void HeadOutput::add(HostLines& host, Stream stream, logs::Piece piece) {
  logs::RankConsole& ranks = stream == Stream::out ? *out_ : *err_;
  if (!mark_.empty() && piece.text.starts_with(mark_)) {
    std::string_view rest = piece.text.substr(mark_.size());
    const std::string_view rank = rest.substr(0, rest.find(logs::mark_end));
    rest.remove_prefix(std::min(rest.size(), rank.size() + 1));
    const std::string_view prefix = rest.substr(0, rest.find(logs::mark_end));
    if (const auto number = parse_integer(rank, 0, INT_MAX); number && prefix.size() < rest.size()) {
      return ranks.feed(stream_of(host, stream, static_cast<int>(*number), prefix), rest.substr(prefix.size() + 1));
    }
  }
  constexpr std::string_view own = "ddrun: ";
  std::string_view prefix;
  if ((stream == Stream::err || out_ == err_) && !host.own_prefix.empty() && piece.text.starts_with(own)) {
    prefix = host.own_prefix;
    piece.text.remove_prefix(own.size());
  }
  ranks.add_unlabelled(&(stream == Stream::out ? host.out : host.err), prefix, piece);
}

void HeadOutput::show(HostLines& host, Stream stream, std::string_view bytes) {
  auto& lines = stream == Stream::out ? host.out : host.err;
  lines.feed(bytes, [&](const logs::Piece& piece) { add(host, stream, piece); });
  (stream == Stream::out ? out_ : err_)->flush();
}

void HeadOutput::finish(HostLines& host) {
  host.out.finish([&](const logs::Piece& piece) { add(host, Stream::out, piece); });
  host.err.finish([&](const logs::Piece& piece) { add(host, Stream::err, piece); });
  for (const auto& stream : host.ranks) (stream->is_error ? err_ : out_)->close_stream(*stream);
  host.ranks.clear();
  out_->flush();
  err_->flush();
}

void HeadOutput::flush() {
  for (const auto& ranks : {out_, err_}) {
    ranks->release();
    ranks->flush_now();
  }
}

HeadOutput::Loss HeadOutput::close() {
  set_message_sink({});
  out_->close();
  if (err_ != out_) err_->close();
  Loss loss;
  const auto add = [&loss](const logs::Console& console) {
    if (console.lost_bytes() == 0 || console.reader_closed()) return;
    loss.bytes += console.lost_bytes();
    loss.why = console.first_error();
  };
  add(out_->console());
  if (err_ != out_) add(err_->console());
  if (!loss.why.empty()) return loss;
  for (const auto& disk : disks_) {
    if (auto why = disk->finish(); !why.empty()) loss.why = concat("cannot write to the console: ", why);
  }
  return loss;
}

std::string without_user(const std::string& host) {
  const auto at = host.rfind('@');
  return at == std::string::npos ? host : host.substr(at + 1);
}

class Head {
 public:
  Head(HeadOptions options, process::AgentContext& context)
      : options_(std::move(options)),
        context_(context),
        watcher_(
            io_.get_executor(),
            [this](const process::ChildEnd& end) {
              for (const Host& host : hosts_) {
                if (host.link && host.link->child_ended(end)) return;
              }
            },
            [] {}),
        signals_(
            io_.get_executor(), context_,
            {[this](const process::SignalMessage& message) { on_signal(message); },
             [this](pid_t first) { watcher_.reap(first); }, [this](const char* who, pid_t) { on_parent_lost(who); }}),
        output_(io_.get_executor(), options_.log, options_.job.relay_mark, [this] { throttle(); }),
        ping_(io_),
        console_timer_(io_.get_executor()),
        time_limit_(io_.get_executor()),
        end_timer_(io_),
        start_timer_(io_),
        notice_timer_(io_),
        start_decision_(options_.hosts.size(), options_.min_nodes, options_.job.max_nodes, options_.last_call),
        input_(
            io_.get_executor(), [this](std::string_view bytes) { send_input(bytes); }, [this] { send_input({}); }) {}

  int run() {
    if (auto ready = set_up(); !ready) {
      say_error(ready.error().message);
      return exit_codes::launcher_failed;
    }
    io_.run();
    if (running() > 0 && !failure_) {
      failure_ = true;
      say_error("ddrun has no event to wait for before all hosts have ended: a system call that it needs is denied");
    }
    HeadOutput::Loss lost = output_.close();
    if (!lost.why.empty()) {
      if (exit_code() == 0) failure_ = true;
      say_error(lost.why);
    }
    lost.bytes += dropped_output();
    if (lost.bytes > 0 && options_.on_lost_output) {
      options_.on_lost_output(lost.bytes, lost.why.empty() ? "not read in time" : lost.why);
    }
    write_report();
    return exit_code();
  }

 private:
  struct Host {
    HeadHost what;
    std::unique_ptr<Link> link;
    bool opening = false;  ///< its ssh has been started, ddrun has not
    Clock::time_point start_deadline{};
    unsigned retries = 0;
    std::string retried_why;
    std::optional<Alarm> retry_timer;
    bool ready = false;    ///< ddrun runs on it
    bool started = false;  ///< has received its part of the job
    bool in_round = false;
    std::optional<int> code;
    bool lost = false;
    std::vector<std::string> addresses;
    HeadOutput::HostLines lines;
    std::size_t input_in_flight = 0;
    [[nodiscard]] bool over() const { return code.has_value() || lost; }
  };

  Result<void> set_up() {
    auto ssh = split_command(options_.ssh);
    if (!ssh) return tl::unexpected(ssh.error());
    link_settings_ = {std::move(*ssh), options_.program, options_.build_id, options_.portable, options_.start_limit};
    process::raise_descriptor_limit();
    process::reserve_descriptors(64 + descriptors_per_host * options_.hosts.size());
    auto launcher = process::Launcher::create();
    if (!launcher) return tl::unexpected(launcher.error());
    launcher_ = std::make_unique<process::Launcher>(std::move(*launcher));
    if (auto opened = watcher_.open(); !opened) return opened;
    const auto orderly_end = options_.job.grace + shutdown::head_margin;
    if (auto opened = signals_.open(options_.ending_signals, orderly_end); !opened) return opened;
    output_.redirect_messages();

    for (const HeadHost& host : options_.hosts) {
      hosts_.emplace_back();
      hosts_.back().what = host;
      if (options_.hosts.size() > 1) hosts_.back().lines.own_prefix = concat("ddrun on ", host.name, ": ");
    }
    open_links();
    if (options_.min_nodes < static_cast<int>(hosts_.size())) arm_wait_notice();
    ping();
    return {};
  }

  // ---- links

  /// Starts the next hosts: those that are tried again, then the others in order.
  void open_links() {
    while (!suspended_ && opening_ < max_opening_ && (!retried_.empty() || next_host_ < hosts_.size())) {
      const auto index = retried_.empty() ? static_cast<std::uint32_t>(next_host_++) : retried_.front();
      if (!retried_.empty()) retried_.pop_front();
      const Host& host = hosts_[index];
      if (host.over()) continue;
      if (host.retries > 0 && Clock::now() >= host.start_deadline) on_host_lost(index, host.retried_why);
      else open_link(index);
    }
  }

  void open_link(std::uint32_t index) {
    Host& host = hosts_[index];
    Link::Events events;
    events.on_ready = [this, index] {
      end_opening(hosts_[index]);
      max_opening_ = std::min(max_opening, max_opening_ + 1);
      if (throttled_) hosts_[index].link->pause(true);
      open_links();
    };
    events.on_frame = [this, index](const Frame& frame) { handle_frame(index, frame); };
    events.on_end = [this, index](const std::string& why) {
      Host& host = hosts_[index];
      const bool is_late = host.opening && host.retries > 0 && Clock::now() >= host.start_deadline;
      end_opening(host);
      --links_;
      if (!try_again(index, why)) on_host_lost(index, is_late ? host.retried_why : why);
      open_links();
      if (links_ == 0) on_links_over();
    };
    if (host.link) ended_links_.push_back(std::move(host.link));
    else host.start_deadline = Clock::now() + options_.start_limit;
    host.link = std::make_unique<Link>(io_.get_executor(), link_settings_, host.what.name, host.what.is_local,
                                       std::move(events));
    host.opening = true;
    ++opening_;
    ++links_;
    host.link->start(*launcher_, watcher_, host.start_deadline);
  }

  /// A jump host through which many log in at once closes connections (sshd's MaxStartups): its hosts are tried again,
  /// fewer at a time. False if the link has ended for another reason, or the time is up.
  bool try_again(std::uint32_t index, const std::string& why) {
    Host& host = hosts_[index];
    const auto now = Clock::now();
    const auto at = now + first_retry_delay * (1U << std::min(host.retries, 4U));
    if (host.over() || ending_ || !host.link->was_closed_by_proxy() || at >= host.start_deadline) return false;
    host.retried_why = why;
    const bool is_slower = max_opening_ > 1 && now >= slowed_at_ + first_retry_delay;
    if (is_slower) {
      max_opening_ /= 2;
      slowed_at_ = now;
    }
    say(host.retries++ > 0 && is_slower ? Level::notice : Level::info,
        concat(why, "; trying again, ", max_opening_, " at a time"));
    host.retry_timer.emplace(io_.get_executor()).set(at, [this, index] {
      retried_.push_back(index);
      open_links();
    });
    return true;
  }

  void end_opening(Host& host) {
    if (std::exchange(host.opening, false)) --opening_;
  }

  template <class Action>
  void for_each_link(Action&& action) {
    for (const Host& host : hosts_) {
      if (host.link) action(*host.link);
    }
  }

  void send_all(FrameType type, std::string_view payload) {
    for_each_link([&](Link& link) { link.send(type, payload); });
  }

  // ---- signals and the end

  void on_signal(const process::SignalMessage& message) {
    const int signal = message.signal;
    if (signal == SIGSTOP || (signal == SIGCONT && suspended_)) suspend(signal == SIGSTOP);
    if (options_.ending_signals.count(signal) == 0) {
      // A host in its start has no workers, and its ddrun does not know yet which signals end the job.
      const bool to_all_started = signal == SIGSTOP || signal == SIGCONT;
      for (const Host& host : hosts_) {
        if (host.over() || !(host.in_round || (to_all_started && host.started))) continue;
        host.link->send(FrameType::signal, signal_payload(signal));
      }
      open_links();
      return start_hosts();
    }
    bound_console_wait();
    if (over_ && message.at_once) io_.stop();
    if (over_ || (ending_ && !message.at_once)) return;
    if (ending_signal_ == 0) ending_signal_ = signal;
    if (!ending_) {
      say(Level::notice,
          concat(signal_name(signal), ": stopping ", counted(running(), "host"), " (at once if you repeat it)"));
    } else {
      say(Level::notice, concat(signal_name(signal), " again: killing all workers"));
    }
    end_all(signal);
  }

  /// Ctrl-Z and its end. Forwarded to the hosts as any signal; timers are paused and no host starts meanwhile.
  void suspend(bool still) {
    suspended_ = still;
    if (!still) {
      if (const auto left = std::exchange(remaining_time_, std::nullopt)) arm_end_timer(*left);
    } else if (const auto left = end_timer_.expiry() - std::chrono::steady_clock::now(); end_timer_.cancel() > 0) {
      remaining_time_ = std::chrono::ceil<std::chrono::milliseconds>(left);
    }
    time_limit_.set_paused(still);
    context_.shared->set_suspended(still);
  }

  /// From now on the console is waited for only as long as it takes some output each second.
  void bound_console_wait() {
    if (std::exchange(bounded_, true)) return;
    set_ending();
    watch_console();
  }

  void watch_console() {
    console_timer_.set(Clock::now() + shutdown::console_stall_limit, [this, before = output_.written()] {
      if (output_.written() == before) output_.drop_queue();
      throttle();
      watch_console();
    });
  }

  /// The hosts stop a job whose time is up. What they say of it may wait behind a console that takes no output: then it
  /// is read all the same, and unless the job has gone well the console is given up.
  void on_time_limit() {
    is_time_up_ = true;
    throttle();
    time_limit_.set(Clock::now() + shutdown::console_stall_limit, [this] {
      is_time_up_ = false;
      if (running() > 0 || exit_code() != 0) bound_console_wait();
      throttle();
    });
  }

  /// Stops the job on all hosts; the second call kills it.
  void end_all(int signal) {
    if (suspended_) suspend(false);
    const bool again = std::exchange(ending_, true);
    input_.stop();
    send_all(FrameType::signal, signal_payload(signal, again));
    arm_end_timer(again ? shutdown::head_kill_timeout : options_.job.grace + shutdown::head_margin);
    give_up_unreached_hosts();
    finish_if_over();
  }

  /// Hosts where ddrun does not run yet.
  void give_up_unreached_hosts() {
    for (Host& host : hosts_) {
      if (host.ready || host.over()) continue;
      host.lost = true;
      if (host.opening) host.link->kill();
    }
  }

  void arm_end_timer(std::chrono::milliseconds from_now) {
    end_timer_.expires_after(from_now);
    end_timer_.async_wait([this](const boost::system::error_code& ec) {
      if (ec) return;
      for (const Host& host : hosts_) {
        if (!host.over()) say_error(concat("host ", host.what.name, " has not ended in time; its connection is cut"));
      }
      for_each_link([](Link& link) { link.kill(); });
    });
  }

  void on_parent_lost(const char* who) {
    if (failure_) return;
    failure_ = true;
    say_error(concat("ddrun's own ", who, " was killed; the job was stopped"));
    bound_console_wait();
    end_all(options_.job.ending_signal);
  }

  [[nodiscard]] long running() const {
    return std::count_if(hosts_.begin(), hosts_.end(), [](const Host& host) { return !host.over(); });
  }

  void on_host_lost(std::uint32_t index, const std::string& why) {
    Host& host = hosts_[index];
    if (host.over()) return;
    host.lost = true;
    output_.finish(host.lines);
    if (!ending_ && !is_left_out(host)) {
      if (continues_without(index)) {
        leave_out(index, why);
      } else {
        say_error(why);
        failure_ = true;
        end_all(options_.job.ending_signal);
      }
    }
    finish_if_over();
  }

  /// Others continue if enough are left. The loss of the coordinator's host ends the job.
  [[nodiscard]] bool continues_without(std::uint32_t index) const {
    return coordinator_ != index && running() >= options_.min_nodes;
  }

  void leave_out(std::uint32_t index, const std::string& why) {
    say(Level::warning, concat(why, coordinator_ ? "; the job goes on without it" : "; the job starts without it"));
    decide_start(StartDecision::Event::failed, index);
    request_input_if_started();
  }

  [[nodiscard]] bool all_started() const {
    return std::all_of(hosts_.begin(), hosts_.end(), [](const Host& host) { return host.started || host.over(); });
  }

  /// Hosts have ended before the first round, and too few are left.
  [[nodiscard]] bool cannot_start() const {
    if (std::any_of(hosts_.begin(), hosts_.end(), [](const Host& host) { return host.in_round; })) return false;
    return running() < options_.min_nodes;
  }

  /// The coordinator has ended before this host was in a round: it does not matter any more.
  [[nodiscard]] bool is_left_out(const Host& host) const {
    return coordinator_ended() && !host.in_round && &host != &hosts_[*coordinator_];
  }
  [[nodiscard]] bool coordinator_ended() const { return coordinator_ && hosts_[*coordinator_].over(); }

  void finish_if_over() {
    if (running() > 0) return;
    end_timer_.cancel();
    input_.stop();
    if (links_ == 0) return on_links_over();
    for_each_link([](Link& link) { link.close_input(); });
    arm_end_timer(head_close_timeout);
  }

  void on_links_over() {
    if (running() > 0) return;
    ping_.cancel();
    end_timer_.cancel();
    output_.flush();
    over_ = true;  // only the console's queue is left
    if (output_.queued() == 0) io_.stop();
  }

  [[nodiscard]] int exit_code() const {
    if (failure_) return exit_codes::launcher_failed;
    if (first_code_ != 0) return first_code_;
    const auto has_no_code = [](const Host& host) { return host.lost || !host.started; };
    if (ending_signal_ != 0 && std::any_of(hosts_.begin(), hosts_.end(), has_no_code)) {
      return exit_codes::signal_base + ending_signal_;
    }
    return 0;
  }

  // ---- hosts

  void handle_frame(std::uint32_t index, const Frame& frame) {
    Host& host = hosts_[index];
    if (host.code) return;
    switch (frame.type) {
      case FrameType::hello: on_host_ready(index, frame.payload); break;
      case FrameType::out: show(host, HeadOutput::Stream::out, frame.payload); break;
      case FrameType::err: show(host, HeadOutput::Stream::err, frame.payload); break;
      case FrameType::events:
        if (index == coordinator_) handle_events(frame.payload);
        break;
      case FrameType::report:
        if (index == coordinator_) handle_report(frame.payload);
        break;
      case FrameType::listening: on_coordinator_listening(index, frame.payload); break;
      case FrameType::in_round: on_in_round(host); break;
      case FrameType::input_taken: on_input_taken(host, frame.payload); break;
      case FrameType::ended: on_host_ended(index, frame.payload); break;
      default: break;
    }
  }

  void on_host_ready(std::uint32_t index, std::string_view payload) {
    Host& host = hosts_[index];
    host.ready = true;
    if (!payload.empty()) host.addresses = split(payload, ' ');
    if (ending_ || coordinator_ended()) return host.link->send(FrameType::over, {});
    decide_start(StartDecision::Event::answered, index);
  }

  void on_in_round(Host& host) {
    host.in_round = true;
    if (const auto limit = std::exchange(options_.timeout, std::nullopt)) {
      time_limit_.set(Clock::now() + *limit, [this] { on_time_limit(); });
    }
  }

  /// Explains a long wait.
  void arm_wait_notice() {
    notice_timer_.expires_after(wait_notice_delay);
    notice_timer_.async_wait([this](const boost::system::error_code& ec) {
      const auto pending = [](const Host& host) { return !host.ready && !host.over(); };
      const auto first = std::find_if(hosts_.begin(), hosts_.end(), pending);
      if (ec || ending_ || coordinator_ || first == hosts_.end()) return;
      const auto more = std::count_if(first, hosts_.end(), pending) - 1;
      say(Level::notice, concat("waiting for host ", first->what.name, more > 0 ? concat(" and ", more, " more") : "",
                                " to answer (--last-call)"));
    });
  }

  void decide_start(StartDecision::Event event, std::uint32_t index) {
    const auto actions = start_decision_.step(event, index, Clock::now());
    start_timer_.cancel();
    if (actions.coordinator) {
      coordinator_ = actions.coordinator;
      first_round_nodes_ = actions.answered;
    } else if (actions.tick_at) {
      start_timer_.expires_at(*actions.tick_at);
      start_timer_.async_wait([this](const boost::system::error_code& ec) {
        if (!ec && !ending_) decide_start(StartDecision::Event::tick, 0);
      });
    }
    start_hosts();
  }

  /// The coordinator's host first, the others once it listens. If all are needed, none starts before the last one is
  /// being reached: --join-timeout runs on those that have started.
  void start_hosts() {
    if (ending_ || suspended_ || !coordinator_) return;
    const auto waits = [](const Host& host) { return !host.opening && !host.ready && !host.over(); };
    const bool all_needed = options_.min_nodes == static_cast<int>(hosts_.size());
    if (all_needed && std::any_of(hosts_.begin(), hosts_.end(), waits)) return;
    for (std::uint32_t i = 0; i < hosts_.size(); ++i) {
      const Host& host = hosts_[i];
      if (host.ready && !host.started && !host.over() && (i == coordinator_ || !coordinators_.empty())) start_host(i);
    }
    request_input_if_started();
  }

  void start_host(std::uint32_t index) {
    Host& host = hosts_[index];
    Bootstrap part = options_.job;
    part.node_rank = static_cast<int>(index);
    part.node_count = static_cast<int>(hosts_.size());
    part.slots = host.what.slots;
    part.coordinators = coordinators_;
    part.runs_coordinator = index == coordinator_;
    part.first_round_nodes = first_round_nodes_;
    if (part.runs_coordinator)
      part.coordinators = {{all_are_loopback() ? "127.0.0.1" : "0.0.0.0", options_.coordinator_port}};
    part.reads_input = reads_input(index);
    part.one_console = logs::Console::same_file(STDOUT_FILENO, STDERR_FILENO);
    WipedString text(options_.secret);
    text += '\n';
    text += encode(part);
    host.link->send(FrameType::start, text);
    host.started = true;
  }

  void request_input_if_started() {
    if (!coordinator_) return;
    if (all_started()) wipe(options_.secret);
    // Not read if the job cannot begin, and for all workers once all are there.
    const bool for_some =
        options_.min_nodes < static_cast<int>(hosts_.size()) && options_.stdin_.kind != StdinSpec::Kind::all;
    if (for_some || all_started()) request_input();
  }

  /// Whether the coordinator can listen on the loopback only.
  [[nodiscard]] bool all_are_loopback() const {
    return std::all_of(hosts_.begin(), hosts_.end(), [](const Host& host) {
      const std::string name = without_user(host.what.name);
      return name == "localhost" || name == "::1" || name.starts_with("127.");
    });
  }

  void on_coordinator_listening(std::uint32_t index, std::string_view payload) {
    const auto port = parse_integer(payload, 1, 65535);
    if (index != coordinator_ || !port || !coordinators_.empty()) return;
    const Host& host = hosts_[index];
    for (const std::string& address : host.addresses)
      coordinators_.push_back({address, static_cast<std::uint16_t>(*port)});
    coordinators_.push_back({without_user(host.what.name), static_cast<std::uint16_t>(*port)});
    start_hosts();
  }

  void on_host_ended(std::uint32_t index, std::string_view payload) {
    Host& host = hosts_[index];
    const auto code = parse_integer(payload, 0, 255);
    host.code = static_cast<int>(code.value_or(exit_codes::launcher_failed));
    output_.finish(host.lines);
    const bool is_needed = ending_ || !continues_without(index);
    const bool counts = !is_left_out(host) && (host.started || !ending_) && (host.in_round || is_needed);
    if (counts && first_code_ == 0) first_code_ = *host.code;
    if (!host.started && !ending_ && !is_left_out(host)) {
      const std::string why =
          concat("ddrun was ended on host ", host.what.name, " before the job began (status ", *host.code, ")");
      if (is_needed) say_error(concat(why, "; look there for what ended it, and start the job again"));
      else leave_out(index, why);
    }
    if (index == coordinator_ && !ending_) {
      send_all(FrameType::over, {});  // hosts that have been in a round end by themselves
      give_up_unreached_hosts();
    } else if (counts && !ending_ && *host.code != 0 && cannot_start()) {
      end_all(options_.job.ending_signal);
    }
    finish_if_over();
  }

  void ping() {
    ping_.expires_after(ping_interval());
    ping_.async_wait([this](const boost::system::error_code& ec) {
      if (ec) return;
      send_all(FrameType::alive, {});
      ping();
    });
  }

  // ---- output

  void show(Host& host, HeadOutput::Stream stream, std::string_view bytes) {
    output_.show(host.lines, stream, bytes);
    throttle();
  }

  void throttle() {
    if (over_ && output_.queued() == 0) io_.stop();
    const bool congested = is_time_up_ ? output_.queued() >= max_read_ahead : output_.is_congested();
    if (congested == throttled_) return;
    throttled_ = congested;
    for (const Host& host : hosts_) {
      if (host.link && !host.opening) host.link->pause(congested);
    }
  }

  void handle_events(std::string_view lines) {
    if (!lines.empty() && options_.on_events) options_.on_events(lines);
    if (lines.empty()) say(Level::warning, "--events: lines were lost while the output of the job had to wait");
  }

  void handle_report(std::string_view part) {
    if (part.empty()) report_complete_ = true;
    else report_ += part;
  }

  void write_report() {
    if (!options_.on_report) return;
    if (!report_complete_) {
      say(Level::warning,
          concat("no report is written, as host ", hosts_[coordinator_.value_or(0)].what.name, " has not sent it"));
    } else if (auto written = options_.on_report(report_); !written) {
      say_error(written.error().message);
      if (exit_code() == 0) failure_ = true;
    }
  }

  // ---- input

  [[nodiscard]] bool reads_input(std::uint32_t index) const {
    if (!context_.stdin_usable || options_.stdin_.kind == StdinSpec::Kind::none) return false;
    return index == coordinator_ || options_.stdin_.kind == StdinSpec::Kind::all;
  }

  void request_input() {
    if (ending_ || !coordinator_ || !reads_input(*coordinator_)) return;
    for (std::uint32_t i = 0; i < hosts_.size(); ++i) {
      if (reads_input(i) && !hosts_[i].over() && hosts_[i].input_in_flight >= input_window) return;
    }
    input_.request();
  }

  void send_input(std::string_view bytes) {
    for (std::uint32_t i = 0; i < hosts_.size(); ++i) {
      if (!reads_input(i) || !hosts_[i].started || hosts_[i].over()) continue;
      hosts_[i].link->send(FrameType::input, bytes);
      hosts_[i].input_in_flight += bytes.size();
    }
    if (!bytes.empty()) request_input();
  }

  void on_input_taken(Host& host, std::string_view payload) {
    const auto count = parse_integer(payload, 0, INT64_MAX);
    host.input_in_flight -= std::min(host.input_in_flight, static_cast<std::size_t>(count.value_or(0)));
    request_input();
  }

  HeadOptions options_;
  process::AgentContext& context_;
  boost::asio::io_context io_{1};
  std::unique_ptr<process::Launcher> launcher_;
  process::ChildWatcher watcher_;
  process::SignalReceiver signals_;
  bool suspended_ = false;
  std::optional<std::chrono::milliseconds> remaining_time_;  ///< while suspended
  HeadOutput output_;
  boost::asio::steady_timer ping_;
  Alarm console_timer_;  ///< once the wait for it is bounded
  Alarm time_limit_;
  boost::asio::steady_timer end_timer_;
  boost::asio::steady_timer start_timer_;
  boost::asio::steady_timer notice_timer_;
  StartDecision start_decision_;
  HeadInput input_;
  LinkSettings link_settings_;
  std::vector<Host> hosts_;
  std::size_t next_host_ = 0;  ///< the first one whose link has not been opened
  std::deque<std::uint32_t> retried_;
  std::vector<std::unique_ptr<Link>> ended_links_;  ///< of hosts that were tried again: see Link
  std::size_t max_opening_ = max_opening;
  Clock::time_point slowed_at_{};
  std::size_t opening_ = 0;
  std::size_t links_ = 0;                     ///< those that have not ended
  std::optional<std::uint32_t> coordinator_;  ///< its host, once the job has begun
  int first_round_nodes_ = 0;
  std::vector<Endpoint> coordinators_;
  std::string report_;
  bool report_complete_ = false;
  bool throttled_ = false;
  bool ending_ = false;
  int ending_signal_ = 0;  ///< the signal by which the user stopped the job
  bool failure_ = false;   ///< ddrun itself failed, not the job
  int first_code_ = 0;     ///< the first nonzero code
  bool over_ = false;
  bool bounded_ = false;     ///< see bound_console_wait()
  bool is_time_up_ = false;  ///< see on_time_limit()
};

}  // namespace

int run_head(HeadOptions options, process::AgentContext& context) { return Head(std::move(options), context).run(); }

std::string describe_head(const HeadOptions& options) {
  std::string text = concat("would start ddrun on ", counted(static_cast<long long>(options.hosts.size()), "host"),
                            " by ", options.ssh, ", in ", shell_quote(options.job.directory), ":\n");
  for (std::size_t i = 0; i < options.hosts.size(); ++i) {
    text += concat("  node rank ", i, ": ", options.hosts[i].name);
    if (options.hosts[i].slots > 0) text += concat(", ", counted(options.hosts[i].slots, "slot"));
    if (options.hosts[i].is_local) text += ", here";
    text += i == 0 && options.hosts.size() > 1 ? ", coordinator\n" : "\n";
  }
  text += "\neach as:\n  ddrun";
  for (const auto& arg : options.job.args) text += " " + shell_quote(arg);
  text += "\n";
  for (const auto& variable : options.job.variables)
    text += concat("  ", variable.first, "=", shell_quote(variable.second), "\n");
  return text;
}

}  // namespace ddrun::remote
