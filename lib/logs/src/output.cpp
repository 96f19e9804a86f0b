#include "ddrun/logs/output.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "ddrun/base/messages.hpp"
#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/logs/console.hpp"
#include "ddrun/logs/line_assembler.hpp"
#include "ddrun/logs/rank_console.hpp"
#include "line_prefix.hpp"
#include "log_files.hpp"
#include "pseudo_terminal.hpp"
#include "ready_set.hpp"

namespace ddrun::logs {

struct WorkerStream;

/// A console and the streams that are paused by its back pressure.
struct ConsoleSink {
  std::unique_ptr<RankConsole> ranks;  ///< empty: the other sink is the same file
  std::vector<std::shared_ptr<WorkerStream>> paused;
  [[nodiscard]] Console& console() const { return ranks->console(); }
};

/// Copies lines that contain one of the filters to a file that all workers of the attempt share.
struct Duplicate {
  const std::vector<std::string>* filters;
  LogFile* file;
  std::string prefix;
  LineAssembler lines;
};

/// The reading end of one pipe or pseudo-terminal. Small while idle: there are tens of thousands. Held by shared_ptr,
/// because lists of paused and idle streams may outlive it.
struct WorkerStream : std::enable_shared_from_this<WorkerStream> {
  static constexpr std::size_t unbounded = SIZE_MAX;

  UniqueFd pipe;                ///< empty once it is at its end
  ConsoleSink* sink = nullptr;  ///< nullptr: not shown
  RankStream shown;
  std::unique_ptr<LogFile> file;
  std::unique_ptr<Duplicate> duplicate;
  std::unique_ptr<TailBuffer> tail;
  LastWrite last;
  bool paused = false;
  bool pty = false;                      ///< `pipe` is a pseudo-terminal's master
  bool is_large = false;                 ///< the pipe counts in large_pipes_
  bool worker_exited = false;            ///< the pseudo-terminal may be closed: no worker would get SIGHUP
  bool has_no_writer = false;            ///< no process has the pseudo-terminal open at present
  std::size_t unread_limit = unbounded;  ///< bytes that are still read before it is closed
};

/// The end of a file that the worker writes itself.
struct FileTail {
  TailBuffer tail;
  off_t read_to = 0;
  std::chrono::system_clock::time_point read_at{};  ///< the last time
};

/// Bytes that can be read now; of a pseudo-terminal, whose number is unknown, an upper bound.
[[nodiscard]] std::size_t unread_in(const WorkerStream& stream);

class Output::Impl {
 public:
  Impl(boost::asio::any_io_executor executor, OutputOptions options);
  void shut_down();
  void set_hostname(std::string hostname) { options_.hostname = std::move(hostname); }

  // attempts
  Result<void> prepare();
  Result<void> begin_attempt(int attempt, const std::vector<WorkerIdentity>& identities);
  Result<ChildStreams> open_streams(int local_rank);
  Result<ChildStreams> open_extra_streams(std::string prefix, bool as_worker);
  [[nodiscard]] int descriptors_of(int local_rank) const;
  void async_end_attempt(std::function<void()> done, std::set<int> still_running);
  void async_flush(std::function<void()> done) { add_waiter(false, std::move(done)); }
  void set_flush_timeout(Milliseconds timeout);
  void abort_flush();
  bool close();
  void trim();
  void read_file_tails();
  [[nodiscard]] std::vector<TailLine> stderr_tail(int local_rank, std::size_t lines) const;
  [[nodiscard]] LastWrite last_stdout(int local_rank) const;
  [[nodiscard]] std::uint64_t lines_shown() const;
  [[nodiscard]] StreamPlan plan_of(StreamId id, int local_rank) const;
  [[nodiscard]] std::string log_of(StreamId id, int local_rank) const;
  [[nodiscard]] LossReport losses() const;
  void drain(int local_rank);
  void drain_all();
  void screen_resized();
  void console_line(std::string_view text, StreamId id);

  LogLayout layout;

 private:
  struct Worker {
    WorkerIdentity identity;
    std::array<std::shared_ptr<WorkerStream>, 2> streams;  ///< by StreamId; empty unless piped; shared: the first
    std::unique_ptr<FileTail> file_tail;                   ///< of a stderr file that the worker writes itself
  };
  struct Waiter {
    bool for_attempt;
    std::function<void()> done;
  };

  [[nodiscard]] const Worker* find(int local_rank) const;
  /// Whether stdout and stderr of this worker share one pipe, so that lines keep their order. Not where a file or a
  /// filter needs them separately.
  [[nodiscard]] bool shares_stream(int local_rank) const;
  [[nodiscard]] Result<UniqueFd> open_stream(Worker& worker, StreamId id);
  [[nodiscard]] std::unique_ptr<RankConsole> open_console(int fd);
  void show_stream(WorkerStream& stream, const Worker& worker, StreamId id);
  [[nodiscard]] Result<UniqueFd> open_pipe(Worker& worker, StreamId id, const StreamPlan& plan);
  void drain_worker(const Worker& worker);
  static void read_file_tail(FileTail& file, const std::string& path);
  /// A pipe, or a pseudo-terminal if `pty` is set to true.
  [[nodiscard]] Result<Pipe> make_ends(const Worker& worker, StreamId id, const StreamPlan& plan, bool& pty);
  [[nodiscard]] ScreenSize screen_of(const Worker& worker, StreamId id) const;
  [[nodiscard]] Error too_many_descriptors(const std::string& what, int err) const;
  [[nodiscard]] std::string prefix_of(const Worker& worker) const;
  void close_pipes();
  void reset_attempt();
  void add_waiter(bool for_attempt, std::function<void()> done);
  [[nodiscard]] bool consoles_done() const;
  [[nodiscard]] std::uint64_t written_bytes() const;
  void watch_progress();
  void check_waiters();
  void finish(Waiter waiter);

  // bytes
  void readable(WorkerStream& stream);
  enum class ReadResult { data, nothing, end };
  ReadResult read_once(WorkerStream& stream, std::size_t& count);
  void enlarge(WorkerStream& stream);
  void process_chunk(WorkerStream& stream, std::string_view chunk);
  void copy_matching(WorkerStream& stream, std::string_view chunk, bool last);
  void write_file(LogFile& file, std::string_view chunk);
  /// True if all bytes that were in the pipe at the call have been read.
  bool drain_stream(WorkerStream& stream);
  void on_end_of_stream(WorkerStream& stream);
  /// From here on the end of its pseudo-terminal is the end of the stream.
  void on_worker_exit(WorkerStream& stream);
  void close_stream(WorkerStream& stream);
  void discard_rest(WorkerStream& stream);
  void close_after_bytes(WorkerStream& stream, std::size_t rest);
  void warn_leaked_pipes();
  void notify_reader_closed();
  void resume_paused_streams();
  void warn_first_loss(const std::string& error);
  /// Without its log files a job is refused at its start, but not later, and not for a full disk.
  [[nodiscard]] bool may_continue_without_file(int err) const { return disk_is_full(err) || attempts_begun_ > 1; }

  boost::asio::any_io_executor executor_;
  OutputOptions options_;
  ReadySet pipes_;
  std::array<ConsoleSink, 2> sink_storage_;
  std::array<ConsoleSink*, 2> sinks_{};  ///< by StreamId; equal if both consoles are the same file
  std::vector<Worker> workers_;
  std::vector<int> index_of_local_rank_;
  std::array<std::unique_ptr<LogFile>, 2> filtered_logs_;
  int attempts_begun_ = 0;
  bool is_stopping_ = false;       ///< the attempt's workers are being stopped, and may write because of that
  bool ptys_unavailable_ = false;  ///< the system has none, and a notice was printed
  std::size_t open_streams_ = 0;
  std::size_t large_pipes_ = 0;
  bool notified_reader_closed_ = false;
  std::set<int> still_running_;
  std::vector<int> leaked_ranks_;  ///< ranks whose pipes are held open by a process outside of the job
  std::unique_ptr<char[]> read_buffer_;
  std::string scratch_lines_;
  std::vector<Waiter> waiters_;
  std::optional<Milliseconds> flush_timeout_;  ///< see Output::set_flush_timeout()
  bool flush_aborted_ = false;
  boost::asio::steady_timer flush_timer_;
  std::uint64_t earlier_losses_ = 0;
  std::string first_file_error_;
  bool warned_rotation_error_ = false;
  bool shut_down_ = false;
  std::weak_ptr<Impl> self_;
  friend class Output;
};

// ---- begin and end of an attempt: directories, descriptors for workers

namespace {

/// Descriptors that ddrun needs besides those of its workers' output.
constexpr rlim_t base_descriptors = 64;

bool is_out_of_descriptors(int err) { return err == EMFILE || err == ENFILE; }
std::size_t index_of(StreamId id) { return id == StreamId::out ? 0 : 1; }

}  // namespace

Output::Impl::Impl(boost::asio::any_io_executor executor, OutputOptions options)
    : layout(options.log, options.run_id),
      executor_(std::move(executor)),
      options_(std::move(options)),
      pipes_(executor_, [this](void* stream) { readable(*static_cast<WorkerStream*>(stream)); }),
      flush_timer_(executor_) {
  sinks_ = {&sink_storage_[0], &sink_storage_[1]};
  sink_storage_[0].ranks = open_console(options_.console_out);
  if (Console::same_file(options_.console_out, options_.console_err)) sinks_[1] = sinks_[0];
  else sink_storage_[1].ranks = open_console(options_.console_err);
  for (ConsoleSink& sink : sink_storage_) {
    if (sink.ranks) sink.console().on_drained([this] { resume_paused_streams(); });
  }
}

std::unique_ptr<RankConsole> Output::Impl::open_console(int fd) {
  RankConsoleOptions options(options_.log, ::isatty(fd) == 1);
  options.fold = options.fold && options_.local_world_size > 1;
  options.queue_high = options_.queue_high;
  options.idle_flush_delay = options_.idle_flush_delay;
  options.input_rank = options_.input_rank;
  options.input_awaited = options_.input_awaited;
  return std::make_unique<RankConsole>(executor_, fd, std::move(options));
}

void Output::Impl::shut_down() {
  close();
  shut_down_ = true;
  pipes_.close();
}

bool Output::Impl::close() {
  waiters_.clear();
  reset_attempt();
  flush_timer_.cancel();
  for (ConsoleSink& sink : sink_storage_) {
    if (sink.ranks) sink.ranks->close();
  }
  return sinks_[1]->console().ends_mid_line();
}

void Output::Impl::trim() {
  read_buffer_.reset();
  for (ConsoleSink& sink : sink_storage_) {
    if (sink.ranks) sink.console().trim();
  }
}

Result<void> Output::Impl::prepare() {
  if (options_.log.fold == When::always && options_.local_world_size == 1) {
    say(Level::warning, "--fold=always has no effect with one worker");
  }
  if (options_.log.progress == Progress::rows && !sinks_[0]->console().can_erase()) {
    say(Level::warning, "--progress=rows needs a terminal; of each progress bar the last state is shown (last)");
  }
  if (auto good = check_template(options_.log.line_prefix_template); !good) return good;
  for (const auto& [name, filters] :
       {std::pair{"--duplicate-stdout-filters", &options_.log.duplicate_stdout_filters},
        std::pair{"--duplicate-stderr-filters", &options_.log.duplicate_stderr_filters}}) {
    if (std::any_of(filters->begin(), filters->end(), [](const std::string& filter) { return filter.empty(); })) {
      return fail(Errc::invalid_argument, concat(name, ": an empty filter matches every line; leave it out"));
    }
  }
  return layout.prepare(options_.announce_private_directory);
}

Result<void> Output::Impl::begin_attempt(int attempt, const std::vector<WorkerIdentity>& identities) {
  reset_attempt();
  is_stopping_ = false;
  std::vector<int> local_ranks;
  for (const WorkerIdentity& identity : identities) {
    const auto index = static_cast<std::size_t>(identity.local_rank);
    if (index >= index_of_local_rank_.size()) index_of_local_rank_.resize(index + 1, -1);
    index_of_local_rank_[index] = static_cast<int>(workers_.size());
    workers_.push_back({identity, {}, {}});
    local_ranks.push_back(identity.local_rank);
  }
  const bool first = attempts_begun_++ == 0;
  if (auto made = layout.begin_attempt(attempt, local_ranks); !made) {
    // A running job does not fail because of its logs. On a full disk they will have a gap.
    if (first) return made;
    if (disk_is_full(made.error().cause.value())) {
      warn_first_loss(made.error().message);
    } else {
      say(Level::warning,
          concat(made.error().message, "; attempt ", attempt,
                 layout.files_unavailable() ? " has no log files, and all output is shown" : " has no error files"));
    }
  }
  for (const StreamId id : {StreamId::out, StreamId::err}) {
    const auto& filters =
        id == StreamId::out ? options_.log.duplicate_stdout_filters : options_.log.duplicate_stderr_filters;
    if (filters.empty() || !layout.has_attempts()) continue;
    auto& log = filtered_logs_[index_of(id)];
    log = std::make_unique<LogFile>(layout.filtered_log(id), options_.log.rotate_bytes, &layout);
    if (!log->open() && !may_continue_without_file(errno)) return fail(Errc::unavailable, log->first_error());
  }
  return {};
}

/// Reads what is in the pipes, to files and to consoles as far as their queues permit, and closes them.
void Output::Impl::close_pipes() {
  for (Worker& worker : workers_) {
    for (auto& stream : worker.streams) {
      if (!stream) continue;
      drain_stream(*stream);
      discard_rest(*stream);
    }
  }
}

void Output::Impl::reset_attempt() {
  close_pipes();
  for (auto& log : filtered_logs_) {
    if (log) earlier_losses_ += log->lost_bytes();
    log.reset();
  }
  for (ConsoleSink& sink : sink_storage_) sink.paused.clear();
  workers_.clear();
  index_of_local_rank_.clear();
}

const Output::Impl::Worker* Output::Impl::find(int local_rank) const {
  const auto index = static_cast<std::size_t>(local_rank);
  if (local_rank < 0 || index >= index_of_local_rank_.size() || index_of_local_rank_[index] < 0) return nullptr;
  return &workers_[static_cast<std::size_t>(index_of_local_rank_[index])];
}

StreamPlan Output::Impl::plan_of(StreamId id, int local_rank) const {
  StreamTargets targets;
  targets.files = layout.files_allowed() && !layout.files_unavailable();
  targets.unavailable = layout.files_unavailable();
  targets.terminal = sinks_[index_of(id)]->console().is_terminal();
  return plan_stream(options_.log, id, local_rank, options_.local_world_size, targets);
}

std::string Output::Impl::log_of(StreamId id, int local_rank) const {
  return plan_of(id, local_rank).file ? layout.stream_log(id, local_rank) : "";
}

bool Output::Impl::shares_stream(int local_rank) const {
  const StreamPlan out = plan_of(StreamId::out, local_rank);
  const auto shown_alone = [&](const StreamPlan& plan) {
    return plan.kind == StreamPlan::Kind::piped && plan.console && !plan.file && !plan.duplicate;
  };
  return sinks_[0] == sinks_[1] && shown_alone(out) && shown_alone(plan_of(StreamId::err, local_rank));
}

int Output::Impl::descriptors_of(int local_rank) const {
  if (shares_stream(local_rank)) return 1;
  int count = 0;
  for (const StreamId id : {StreamId::out, StreamId::err}) {
    const StreamPlan plan = plan_of(id, local_rank);
    if (plan.kind == StreamPlan::Kind::piped) count += plan.file ? 2 : 1;
  }
  return count;
}

std::string Output::Impl::prefix_of(const Worker& worker) const {
  if (!worker.identity.prefix.empty()) return worker.identity.prefix;
  return line_prefix(options_.log, {.role = options_.role,
                                    .hostname = options_.hostname,
                                    .rank = worker.identity.rank,
                                    .local_rank = worker.identity.local_rank,
                                    .local_world_size = options_.local_world_size});
}

Error Output::Impl::too_many_descriptors(const std::string& what, int err) const {
  struct rlimit limit {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  rlim_t needed = base_descriptors;
  for (const Worker& worker : workers_) needed += static_cast<rlim_t>(descriptors_of(worker.identity.local_rank));
  std::string message = concat("cannot open ", what, ": ");
  if (err == ENFILE) {
    message += concat("the system's limit of open files is reached; this job needs about ", needed);
  } else if (needed < limit.rlim_cur) {
    message +=
        concat("all ", limit.rlim_cur, " open files that are allowed are in use; raise the limit with `ulimit -n ",
               2 * limit.rlim_cur, "`");
  } else {
    message += concat("output of ", workers_.size(), " workers needs about ", needed, " open files, and only ",
                      limit.rlim_cur, " are allowed; raise the limit with `ulimit -n ", needed, "`");
  }
  return Error{Errc::unavailable, message, std::error_code(err, std::generic_category())};
}

Result<ChildStreams> Output::Impl::open_streams(int local_rank) {
  Worker* worker = const_cast<Worker*>(std::as_const(*this).find(local_rank));
  if (worker == nullptr) {
    return fail(Errc::invalid_argument, concat("local rank ", local_rank, " is not in this attempt"));
  }
  auto out = open_stream(*worker, StreamId::out);
  if (!out) return tl::unexpected<Error>(out.error());
  const bool shared = shares_stream(local_rank);
  if (shared) worker->streams[0]->tail = std::make_unique<TailBuffer>();
  auto err = shared ? duplicate(out->get()) : open_stream(*worker, StreamId::err);
  if (!err) return tl::unexpected<Error>(err.error());
  ChildStreams streams{std::move(*out), std::move(*err)};
  for (std::size_t i = 2; i-- > 0;) {
    if (worker->streams[i] && worker->streams[i]->pty) streams.terminal = static_cast<int>(i) + 1;
  }
  return streams;
}

Result<ChildStreams> Output::Impl::open_extra_streams(std::string prefix, bool as_worker) {
  reset_attempt();
  Worker& worker = workers_.emplace_back(Worker{{0, 0, std::move(prefix)}, {}, {}});
  const auto plan = [&](StreamId id) {
    StreamPlan made;
    made.kind = StreamPlan::Kind::piped;
    made.console = true;
    const StreamPlan of_worker = plan_of(id, 0);
    const bool inherits = of_worker.kind == StreamPlan::Kind::inherit;
    made.pty = as_worker && (inherits ? sinks_[index_of(id)]->console().is_terminal() : of_worker.pty);
    return made;
  };
  auto out = open_pipe(worker, StreamId::out, plan(StreamId::out));
  if (!out) return tl::unexpected(out.error());
  const bool shared = sinks_[0] == sinks_[1] && plan(StreamId::out).pty == plan(StreamId::err).pty;
  auto err = shared ? duplicate(out->get()) : open_pipe(worker, StreamId::err, plan(StreamId::err));
  if (!err) return tl::unexpected(err.error());
  return ChildStreams{std::move(*out), std::move(*err)};
}

Result<UniqueFd> Output::Impl::open_stream(Worker& worker, StreamId id) {
  const StreamPlan plan = plan_of(id, worker.identity.local_rank);
  if (plan.kind == StreamPlan::Kind::inherit) return UniqueFd();
  if (plan.kind == StreamPlan::Kind::piped) return open_pipe(worker, id, plan);
  const bool file = plan.kind == StreamPlan::Kind::direct_file;
  const std::string path = file ? layout.stream_log(id, worker.identity.local_rank) : "/dev/null";
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC | (file ? O_APPEND | O_CREAT : 0), 0666));
  if (fd) return fd;
  if (is_out_of_descriptors(errno)) return tl::unexpected<Error>(too_many_descriptors(path, errno));
  // The disk is full, or the directory is missing. With a pipe the worker can run, and LogFile retries.
  if (file && (may_continue_without_file(errno) || errno == ENOENT)) return open_pipe(worker, id, plan);
  return fail_errno(Errc::unavailable, concat("cannot open ", path), errno);
}

Result<UniqueFd> Output::Impl::open_pipe(Worker& worker, StreamId id, const StreamPlan& plan) {
  auto stream = std::make_shared<WorkerStream>();
  const int local_rank = worker.identity.local_rank;
  if (plan.file) {
    stream->file = std::make_unique<LogFile>(layout.stream_log(id, local_rank), options_.log.rotate_bytes, &layout);
    if (!stream->file->open()) {
      const int err = errno;
      if (is_out_of_descriptors(err)) return tl::unexpected<Error>(too_many_descriptors(stream->file->path(), err));
      if (!may_continue_without_file(err)) return fail(Errc::unavailable, stream->file->first_error());
      warn_first_loss(stream->file->first_error());
    }
  }
  auto pipe = make_ends(worker, id, plan, stream->pty);
  if (!pipe) {
    const int err = pipe.error().cause.value();
    if (!is_out_of_descriptors(err)) return tl::unexpected<Error>(pipe.error());
    return tl::unexpected<Error>(too_many_descriptors(concat("a pipe for local rank ", local_rank), err));
  }
  if (auto watched = pipes_.add(pipe->read.get(), stream.get()); !watched) return tl::unexpected(watched.error());
  stream->pipe = std::move(pipe->read);
  if (plan.console) show_stream(*stream, worker, id);
  if (plan.duplicate && filtered_logs_[index_of(id)]) {
    const auto& filters =
        id == StreamId::out ? options_.log.duplicate_stdout_filters : options_.log.duplicate_stderr_filters;
    stream->duplicate.reset(new Duplicate{&filters, filtered_logs_[index_of(id)].get(), prefix_of(worker), {}});
  }
  if (id == StreamId::err) stream->tail = std::make_unique<TailBuffer>();
  worker.streams[index_of(id)] = stream;
  ++open_streams_;
  return std::move(pipe->write);
}

void Output::Impl::show_stream(WorkerStream& stream, const Worker& worker, StreamId id) {
  stream.sink = sinks_[index_of(id)];
  RankStream& shown = stream.shown;
  const LogSpec& log = options_.log;
  shown.rank = worker.identity.rank;
  shown.prefix = prefix_of(worker);
  shown.labelled = worker.identity.prefix.empty() && log.line_prefix_template.empty();
  if (log.label == Label::host) shown.host = options_.hostname;
  if (!log.relay_mark.empty()) shown.prefix = concat(log.relay_mark, shown.rank, mark_end, shown.prefix, mark_end);
  shown.is_error = id == StreamId::err;
  stream.sink->ranks->open_stream(shown);
}

Result<Pipe> Output::Impl::make_ends(const Worker& worker, StreamId id, const StreamPlan& plan, bool& pty) {
  pty = plan.pty && !ptys_unavailable_;
  if (pty) {
    auto made = PseudoTerminal::open(screen_of(worker, id));
    if (made) return Pipe{std::move(made->master), std::move(made->slave)};
    if (options_.log.pty == PtyUse::always || is_out_of_descriptors(made.error().cause.value())) {
      return tl::unexpected<Error>(made.error());
    }
    pty = false;
    ptys_unavailable_ = true;
    say(Level::notice, concat(made.error().message, "; workers get pipes"));
  }
  auto pipe = make_pipe();
  // Not the write end, whose flags the worker would share.
  if (pipe) ::fcntl(pipe->read.get(), F_SETFL, O_NONBLOCK);
  return pipe;
}

ScreenSize Output::Impl::screen_of(const Worker& worker, StreamId id) const {
  const int console = id == StreamId::out ? options_.console_out : options_.console_err;
  std::size_t width = screen_width(prefix_of(worker));
  if (options_.log.timestamps) width += time_stamp({}).size();
  return screen_size(console).without_prefix(width);
}

void Output::Impl::screen_resized() {
  for (const Worker& worker : workers_) {
    for (const StreamId id : {StreamId::out, StreamId::err}) {
      const auto& stream = worker.streams[index_of(id)];
      if (!stream || !stream->pty || !stream->pipe) continue;
      resize(stream->pipe, screen_of(worker, id));
    }
  }
}

bool Output::Impl::consoles_done() const {
  return std::all_of(sink_storage_.begin(), sink_storage_.end(),
                     [](const ConsoleSink& sink) { return !sink.ranks || sink.console().queued() == 0; });
}

std::uint64_t Output::Impl::written_bytes() const {
  std::uint64_t total = 0;
  for (const ConsoleSink& sink : sink_storage_) {
    if (sink.ranks) total += sink.console().written_bytes();
  }
  return total;
}

void Output::Impl::add_waiter(bool for_attempt, std::function<void()> done) {
  waiters_.push_back({for_attempt, std::move(done)});
  for (ConsoleSink& sink : sink_storage_) {
    if (!sink.ranks) continue;
    sink.ranks->release();
    sink.console().flush();
  }
  check_waiters();
  if (waiters_.empty()) return;
  if (flush_aborted_) return abort_flush();
  if (flush_timeout_) watch_progress();
}

void Output::Impl::set_flush_timeout(Milliseconds timeout) {
  if (std::exchange(flush_timeout_, timeout) || waiters_.empty()) return;
  watch_progress();
}

/// The timeout begins again with each byte written: a slow reader gets everything.
void Output::Impl::watch_progress() {
  flush_timer_.expires_after(*flush_timeout_);
  flush_timer_.async_wait([this, self = self_, before = written_bytes()](const boost::system::error_code& cancelled) {
    const auto alive = self.lock();
    if (cancelled || !alive || shut_down_ || waiters_.empty()) return;
    if (written_bytes() == before) abort_flush();
    else watch_progress();
  });
}

void Output::Impl::abort_flush() {
  flush_aborted_ = true;
  flush_timer_.cancel();
  if (std::ranges::any_of(waiters_, &Waiter::for_attempt)) close_pipes();
  for (Waiter& waiter : std::exchange(waiters_, {})) finish(std::move(waiter));
}

void Output::Impl::check_waiters() {
  if (open_streams_ == 0) warn_leaked_pipes();
  if (waiters_.empty() || !consoles_done()) return;
  for (Waiter& waiter : std::exchange(waiters_, {})) {
    if (!waiter.for_attempt || open_streams_ == 0) finish(std::move(waiter));
    else waiters_.push_back(std::move(waiter));
  }
}

void Output::Impl::finish(Waiter waiter) {
  boost::asio::post(executor_, [self = self_, done = std::move(waiter.done)] {
    if (const auto alive = self.lock(); alive && !alive->shut_down_) done();
  });
}

void Output::Impl::async_end_attempt(std::function<void()> done, std::set<int> still_running) {
  still_running_ = std::move(still_running);
  // Most pipes are at their end by now: to read that here saves a turn of the loop for each. The others hold all of the
  // job's output already: only a process outside of the job could write more.
  for (Worker& worker : workers_) {
    for (auto& stream : worker.streams) {
      if (!stream) continue;
      on_worker_exit(*stream);
      const bool read = !stream->paused && drain_stream(*stream);
      if (stream->pipe) close_after_bytes(*stream, read ? 0 : unread_in(*stream));
    }
  }
  add_waiter(true, std::move(done));
}

namespace {

std::chrono::system_clock::time_point written_at(const struct stat& info) {
  const auto written = std::chrono::seconds(info.st_mtim.tv_sec) + std::chrono::nanoseconds(info.st_mtim.tv_nsec);
  return std::chrono::system_clock::time_point(
      std::chrono::duration_cast<std::chrono::system_clock::duration>(written));
}

}  // namespace

void Output::Impl::read_file_tail(FileTail& file, const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == file.read_to) return;
  constexpr auto max_bytes = static_cast<off_t>(TailBuffer::limit);
  const off_t from = std::max(info.st_size < file.read_to ? 0 : file.read_to, info.st_size - max_bytes);
  if (from != file.read_to) file.tail.skip();
  std::string text(static_cast<std::size_t>(info.st_size - from), '\0');
  const ssize_t count = ::pread(fd.get(), text.data(), text.size(), from);
  if (count <= 0) return;
  // A file's time may be some milliseconds early; new bytes were written after the last read.
  file.tail.add({text.data(), static_cast<std::size_t>(count)}, std::max(written_at(info), file.read_at));
  file.read_to = from + count;
}

void Output::Impl::read_file_tails() {
  for (Worker& worker : workers_) {
    if (worker.streams[1]) continue;
    const std::string path = log_of(StreamId::err, worker.identity.local_rank);
    if (path.empty()) continue;
    if (!worker.file_tail) worker.file_tail = std::make_unique<FileTail>();
    const auto now = std::chrono::system_clock::now();
    read_file_tail(*worker.file_tail, path);
    worker.file_tail->read_at = now;
  }
}

std::vector<TailLine> Output::Impl::stderr_tail(int local_rank, std::size_t lines) const {
  const Worker* worker = find(local_rank);
  if (worker == nullptr) return {};
  for (const auto& stream : worker->streams) {
    if (stream && stream->tail) return stream->tail->lines(lines);
  }
  return worker->file_tail ? worker->file_tail->tail.lines(lines) : std::vector<TailLine>();
}

LastWrite Output::Impl::last_stdout(int local_rank) const {
  const Worker* worker = find(local_rank);
  if (worker == nullptr) return {};
  if (const auto& stream = worker->streams[0]) return shares_stream(local_rank) ? LastWrite{} : stream->last;
  struct stat info {};
  const std::string path = log_of(StreamId::out, local_rank);
  return !path.empty() && ::stat(path.c_str(), &info) == 0 ? LastWrite{written_at(info)} : LastWrite{};
}

std::uint64_t Output::Impl::lines_shown() const {
  std::uint64_t total = 0;
  for (const ConsoleSink& sink : sink_storage_) total += sink.ranks ? sink.ranks->lines_shown() : 0;
  return total;
}

LossReport Output::Impl::losses() const {
  LossReport report;
  report.first_error = first_file_error_;
  report.file_bytes = earlier_losses_;
  for (const Worker& worker : workers_) {
    for (const auto& stream : worker.streams) {
      if (stream && stream->file) report.file_bytes += stream->file->lost_bytes();
    }
  }
  for (const auto& log : filtered_logs_) {
    if (log) report.file_bytes += log->lost_bytes();
  }
  for (const ConsoleSink& sink : sink_storage_) {
    if (!sink.ranks) continue;
    const Console& console = sink.console();
    if (console.reader_closed()) {
      report.unread_bytes += console.lost_bytes();
      continue;
    }
    if (console.lost_bytes() == 0) continue;
    report.console_bytes += console.lost_bytes();
    if (report.console_error.empty()) report.console_error = console.first_error();
  }
  return report;
}

Output::Output(boost::asio::any_io_executor executor, OutputOptions options)
    : impl_(std::make_shared<Impl>(std::move(executor), std::move(options))) {
  impl_->self_ = impl_;
}
Output::~Output() { impl_->shut_down(); }

Result<void> Output::prepare() { return impl_->prepare(); }
void Output::set_hostname(std::string hostname) { impl_->set_hostname(std::move(hostname)); }
Result<void> Output::begin_attempt(int attempt, const std::vector<WorkerIdentity>& workers) {
  return impl_->begin_attempt(attempt, workers);
}
Result<ChildStreams> Output::open_streams(int local_rank) { return impl_->open_streams(local_rank); }
Result<ChildStreams> Output::open_extra_streams(std::string prefix, bool as_worker) {
  return impl_->open_extra_streams(std::move(prefix), as_worker);
}
int Output::descriptors_per_worker(int local_rank) const { return impl_->descriptors_of(local_rank); }
void Output::drain(int local_rank) { impl_->drain(local_rank); }
void Output::drain_all() { impl_->drain_all(); }
void Output::screen_resized() { impl_->screen_resized(); }
void Output::async_end_attempt(std::function<void()> done, std::set<int> still_running) {
  impl_->async_end_attempt(std::move(done), std::move(still_running));
}
void Output::async_flush(std::function<void()> done) { impl_->async_flush(std::move(done)); }
bool Output::is_flushed() const { return impl_->consoles_done(); }
void Output::set_flush_timeout(Milliseconds timeout) { impl_->set_flush_timeout(timeout); }
void Output::abort_flush() { impl_->abort_flush(); }
bool Output::close() { return impl_->close(); }
void Output::trim() { impl_->trim(); }
void Output::read_file_tails() { impl_->read_file_tails(); }
std::vector<TailLine> Output::stderr_tail(int local_rank, std::size_t lines) const {
  return impl_->stderr_tail(local_rank, lines);
}
LastWrite Output::last_stdout(int local_rank) const { return impl_->last_stdout(local_rank); }
std::uint64_t Output::lines_shown() const { return impl_->lines_shown(); }
bool Output::console_shows_stderr(int local_rank) const { return impl_->plan_of(StreamId::err, local_rank).console; }
std::string Output::stdout_log(int local_rank) const { return impl_->log_of(StreamId::out, local_rank); }
std::string Output::stderr_log(int local_rank) const { return impl_->log_of(StreamId::err, local_rank); }
std::string Output::error_file(int local_rank) const { return impl_->layout.error_file(local_rank); }
std::string Output::attempt_dir() const { return impl_->layout.attempt_dir(); }
std::string Output::run_dir() const { return impl_->layout.run_dir(); }
Result<void> Output::link_latest() const { return impl_->layout.link_latest(); }
std::string Output::root() const { return impl_->layout.root(); }
void Output::console_line(std::string_view text) { impl_->console_line(text, StreamId::err); }
void Output::stdout_line(std::string_view text) { impl_->console_line(text, StreamId::out); }
LossReport Output::losses() const { return impl_->losses(); }
void Output::remove_error_files() { impl_->layout.remove_error_files(); }
bool Output::remove_if_unused() { return impl_->layout.remove_if_unused(); }

// ---- data path: from a worker's pipe to its log file, to the console in whole lines, to filtered logs

namespace {

/// One read of one worker, for fairness.
constexpr std::size_t max_read_bytes = std::size_t{256} << 10U;
/// A read that finds so much has found the pipe full, of 64 KiB as the kernel makes it.
constexpr std::size_t full_pipe_bytes = std::size_t{32} << 10U;
/// A longer line is filtered in parts: unfinished lines of filters are not counted in the console's bound of them.
constexpr std::size_t max_filtered_line = std::size_t{64} << 10U;
/// drain() may fill a console's queue up to this many times its bound.
constexpr std::size_t drain_factor = 16;

}  // namespace

std::size_t unread_in(const WorkerStream& stream) {
  if (stream.pty) return PseudoTerminal::capacity;
  int count = 0;
  return ::ioctl(stream.pipe.get(), FIONREAD, &count) == 0 && count > 0 ? static_cast<std::size_t>(count) : 0;
}

void Output::Impl::readable(WorkerStream& stream) {
  if (stream.paused) return;
  if (stream.sink != nullptr && stream.sink->console().has_back_pressure()) {
    // Back pressure: the pipe fills up, and the worker blocks.
    stream.paused = true;
    stream.sink->paused.push_back(stream.shared_from_this());
    pipes_.pause(stream.pipe.get(), &stream);
    return;
  }
  std::size_t count = 0;
  if (read_once(stream, count) == ReadResult::end) return on_end_of_stream(stream);
  if (stream.unread_limit != WorkerStream::unbounded) {
    std::size_t rest = stream.unread_limit - std::min(stream.unread_limit, count);
    if (stream.pty && drain_stream(stream)) rest = 0;  // the number of its bytes is unknown
    if (stream.pipe) close_after_bytes(stream, rest);
    if (!stream.pipe) return;
  }
  if (stream.has_no_writer) {
    stream.has_no_writer = false;
    pipes_.resume(stream.pipe.get(), &stream);
  }
}

void Output::Impl::on_end_of_stream(WorkerStream& stream) {
  if (!stream.pty || stream.worker_exited) return close_stream(stream);
  // The worker runs and has closed its pseudo-terminal. To close the master would send it SIGHUP. It may open /dev/tty
  // and write later, which an edge reports.
  if (stream.has_no_writer) return;
  stream.has_no_writer = true;
  pipes_.watch_edges(stream.pipe.get(), &stream);
}

/// All processes of the job are dead: reads `rest` more bytes even if another process holds the pipe open.
void Output::Impl::close_after_bytes(WorkerStream& stream, std::size_t rest) {
  stream.unread_limit = rest;
  if (rest > 0) return;
  std::size_t count = 0;
  const bool at_end = read_once(stream, count) == ReadResult::end;
  if (!at_end && still_running_.count(stream.shown.rank) == 0) leaked_ranks_.push_back(stream.shown.rank);
  close_stream(stream);
}

void Output::Impl::warn_leaked_pipes() {
  if (leaked_ranks_.empty()) return;
  std::vector<int> ranks = std::exchange(leaked_ranks_, {});
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  say(Level::notice,
      concat(name_ranks(ranks), ranks.size() == 1 ? " is" : " are",
             " gone, but another process holds the output open; what it writes from now on is not shown"));
}

Output::Impl::ReadResult Output::Impl::read_once(WorkerStream& stream, std::size_t& count) {
  if (!read_buffer_) {
    read_buffer_.reset(new char[max_read_bytes]);
    if (options_.on_first_output) options_.on_first_output();
  }
  const ssize_t size = ::read(stream.pipe.get(), read_buffer_.get(), max_read_bytes);
  if (size > 0) {
    count = static_cast<std::size_t>(size);
    if (count >= full_pipe_bytes && !stream.pty && !stream.is_large) enlarge(stream);
    process_chunk(stream, {read_buffer_.get(), count});
    return ReadResult::data;
  }
  return size < 0 && (errno == EAGAIN || errno == EINTR) ? ReadResult::nothing : ReadResult::end;
}

/// The worker and ddrun wait for each other less often.
void Output::Impl::enlarge(WorkerStream& stream) {
  // All pipes of the user together; beyond it the kernel gives new ones, of any program, two pages.
  static const std::size_t limit = [] {
    const auto pages = read_small_file("/proc/sys/fs/pipe-user-pages-soft");
    const long count = pages ? std::atol(pages->c_str()) : 0;
    return static_cast<std::size_t>(count > 0 ? count : 16384) * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  }();
  if ((large_pipes_ + 1) * max_read_bytes > limit / 4 || !enlarge_pipe(stream.pipe.get(), max_read_bytes)) return;
  stream.is_large = true;
  ++large_pipes_;
}

void Output::Impl::process_chunk(WorkerStream& stream, std::string_view chunk) {
  if (stream.file) write_file(*stream.file, chunk);
  if (stream.duplicate) copy_matching(stream, chunk, false);
  if (stream.sink != nullptr) stream.sink->ranks->feed(stream.shown, chunk);
  const LastWrite now{std::chrono::system_clock::now(), pipes_.turns()};
  if (!is_stopping_) stream.last = now;
  if (stream.tail) stream.tail->add(chunk, now.at, lines_shown(), now.turn);
}

void Output::Impl::copy_matching(WorkerStream& stream, std::string_view chunk, bool last) {
  Duplicate& duplicate = *stream.duplicate;
  scratch_lines_.clear();
  const auto copy = [&](const Piece& piece) {
    const auto matches = [&](const std::string& filter) { return piece.text.find(filter) != std::string_view::npos; };
    if (std::none_of(duplicate.filters->begin(), duplicate.filters->end(), matches)) return;
    scratch_lines_ += duplicate.prefix;
    scratch_lines_ += piece.text;
    if (piece.end == PieceEnd::cut) scratch_lines_ += '\n';
  };
  duplicate.lines.feed(chunk, copy);
  if (last || duplicate.lines.partial_bytes() >= max_filtered_line) duplicate.lines.finish(copy);
  if (!scratch_lines_.empty()) write_file(*duplicate.file, scratch_lines_);
}

void Output::Impl::write_file(LogFile& file, std::string_view chunk) {
  file.write(chunk);
  if (first_file_error_.empty() && !file.first_error().empty()) warn_first_loss(file.first_error());
  if (!file.rotation_error().empty() && !std::exchange(warned_rotation_error_, true)) {
    say(Level::warning, concat(file.rotation_error(), "; it grows on instead (said once)"));
  }
}

void Output::Impl::warn_first_loss(const std::string& error) {
  if (!first_file_error_.empty()) return;
  first_file_error_ = error;
  say(Level::warning, concat(error, "; the job goes on without what cannot be written (said once)"));
}

bool Output::Impl::drain_stream(WorkerStream& stream) {
  if (!stream.pipe) return true;
  if (stream.sink != nullptr && !stream.file && !stream.duplicate &&
      stream.sink->console().queued() > options_.queue_high * drain_factor) {
    return false;  // its bytes are safe in the pipe until the console has room
  }
  // Only what is there now: a grandchild may go on writing without end.
  const std::size_t available = unread_in(stream);
  std::size_t total = 0;
  for (bool more = true; more;) {
    more = total < available;
    std::size_t count = 0;
    const ReadResult result = read_once(stream, count);
    if (result == ReadResult::end) on_end_of_stream(stream);
    if (result != ReadResult::data) return true;
    total += count;
  }
  return true;
}

void Output::Impl::drain_worker(const Worker& worker) {
  for (const auto& stream : worker.streams) {
    if (stream) drain_stream(*stream);
  }
}

void Output::Impl::drain(int local_rank) {
  const Worker* worker = find(local_rank);
  if (worker == nullptr) return;
  for (const auto& stream : worker->streams) {
    if (stream) on_worker_exit(*stream);
  }
  drain_worker(*worker);
}

void Output::Impl::on_worker_exit(WorkerStream& stream) {
  stream.worker_exited = true;
  if (std::exchange(stream.has_no_writer, false)) pipes_.resume(stream.pipe.get(), &stream);
}

void Output::Impl::drain_all() {
  for (const Worker& worker : workers_) drain_worker(worker);
  is_stopping_ = true;
}

void Output::Impl::close_stream(WorkerStream& stream) {
  if (!stream.pipe) return;
  pipes_.remove(stream.pipe.get(), &stream);
  stream.pipe.reset();
  if (std::exchange(stream.is_large, false)) --large_pipes_;
  if (stream.duplicate) copy_matching(stream, {}, true);
  if (stream.sink != nullptr) stream.sink->ranks->close_stream(stream.shown);
  if (stream.file) earlier_losses_ += stream.file->lost_bytes();
  stream.file.reset();  // frees its descriptor for the next attempt
  --open_streams_;
  check_waiters();
}

void Output::Impl::discard_rest(WorkerStream& stream) {
  if (!stream.pipe) return;
  if (stream.sink != nullptr && !stream.pty) stream.sink->console().count_lost(unread_in(stream));
  char unread[4096];
  ssize_t size = 0;
  for (std::size_t total = 0; stream.pty && total < PseudoTerminal::capacity; total += static_cast<std::size_t>(size)) {
    size = ::read(stream.pipe.get(), unread, sizeof unread);
    if (size <= 0) break;
    if (stream.sink != nullptr) stream.sink->console().count_lost(static_cast<std::size_t>(size));
  }
  close_stream(stream);
}

/// Prints a notice once if workers run on although their output is dropped.
void Output::Impl::notify_reader_closed() {
  const Console& console = sinks_[0]->console();
  if (notified_reader_closed_ || !console.reader_closed() || console.is_terminal()) return;
  if (open_streams_ == 0 || !waiters_.empty()) return;
  notified_reader_closed_ = true;
  say(Level::notice, "standard output has no reader any more; the job goes on, and Ctrl-C ends it");
}

void Output::Impl::resume_paused_streams() {
  notify_reader_closed();
  for (ConsoleSink& sink : sink_storage_) {
    if (!sink.ranks || sink.console().has_back_pressure()) continue;
    sink.ranks->flush();
    for (const auto& stream : std::exchange(sink.paused, {})) {
      stream->paused = false;
      stream->has_no_writer = false;
      if (stream->pipe) pipes_.resume(stream->pipe.get(), stream.get());
    }
  }
  check_waiters();
}

void Output::Impl::console_line(std::string_view text, StreamId id) {
  RankConsole& ranks = *sinks_[index_of(id)]->ranks;
  ranks.add_text(text);
  ranks.console().flush();
}

}  // namespace ddrun::logs
