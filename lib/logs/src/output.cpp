// An attempt's life: directories, descriptors for workers, the end. How bytes travel is in output_streams.cpp.

#include "ddrun/logs/output.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <utility>

#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/logs/line_prefix.hpp"
#include "output_impl.hpp"

namespace ddrun::logs {

namespace {

/// Descriptors that ddrun needs beside those of its workers' output.
constexpr rlim_t descriptors_besides = 64;

bool disk_is_full(int err) { return err == ENOSPC || err == EDQUOT || err == EFBIG; }
bool descriptors_are_out(int err) { return err == EMFILE || err == ENFILE; }
std::size_t index_of(StreamId id) { return id == StreamId::out ? 0 : 1; }

}  // namespace

Output::Impl::Impl(boost::asio::any_io_executor executor, OutputOptions options)
    : layout(options.log, options.run_id),
      executor_(std::move(executor)),
      options_(std::move(options)),
      pipes_(executor_, [this](void* stream) { readable(*static_cast<WorkerStream*>(stream)); }),
      quiet_timer_(executor_),
      patience_timer_(executor_) {
  lanes_ = {&lane_storage_[0], &lane_storage_[1]};
  lane_storage_[0].console = std::make_shared<Console>(executor_, options_.console_out, options_.queue_high);
  if (Console::same_place(options_.console_out, options_.console_err)) lanes_[1] = lanes_[0];
  else lane_storage_[1].console = std::make_shared<Console>(executor_, options_.console_err, options_.queue_high);
  for (Lane& lane : lane_storage_) {
    if (lane.console) lane.console->on_room([this] { console_has_room(); });
  }
}

void Output::Impl::shut_down() {
  close();
  shut_down_ = true;
  pipes_.close();
}

bool Output::Impl::close() {
  waiters_.clear();
  forget_attempt();
  quiet_timer_.cancel();
  patience_timer_.cancel();
  for (Lane& lane : lane_storage_) {
    if (lane.console) lane.console->close();
  }
  return lanes_[1]->console->in_torn_line();
}

Result<void> Output::Impl::prepare() {
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
  forget_attempt();
  std::vector<int> local_ranks;
  for (const WorkerIdentity& identity : identities) {
    const auto index = static_cast<std::size_t>(identity.local_rank);
    if (index >= index_of_local_rank_.size()) index_of_local_rank_.resize(index + 1, -1);
    index_of_local_rank_[index] = static_cast<int>(workers_.size());
    workers_.push_back({identity, {}, {}});
    local_ranks.push_back(identity.local_rank);
  }
  if (auto made = layout.begin_attempt(attempt, local_ranks); !made) {
    // A job that has begun does not die of a full disk: its logs will have a hole.
    if (!began_ || !disk_is_full(made.error().cause.value())) return made;
    say_first_loss(made.error().message);
  }
  began_ = true;
  for (const StreamId id : {StreamId::out, StreamId::err}) {
    const auto& filters =
        id == StreamId::out ? options_.log.duplicate_stdout_filters : options_.log.duplicate_stderr_filters;
    if (filters.empty() || !layout.has_attempts()) continue;
    auto& log = filtered_logs_[index_of(id)];
    log = std::make_unique<LogFile>(layout.filtered_log(id), options_.log.rotate_bytes);
    if (!log->open() && !disk_is_full(errno)) return fail(Errc::unavailable, log->first_error());
  }
  return {};
}

/// As at the end of a job that is cut short: what is in the pipes goes to files, and to consoles as far as there is
/// room.
void Output::Impl::forget_pipes() {
  for (Worker& worker : workers_) {
    for (auto& stream : worker.streams) {
      if (!stream) continue;
      drain_stream(*stream);
      give_up(*stream);
    }
  }
}

void Output::Impl::forget_attempt() {
  forget_pipes();
  for (auto& log : filtered_logs_) {
    if (log) earlier_losses_ += log->lost_bytes();
    log.reset();
  }
  for (Lane& lane : lane_storage_) lane.held_back.clear();
  quiet_list_.clear();
  workers_.clear();
  index_of_local_rank_.clear();
}

const Output::Impl::Worker* Output::Impl::find(int local_rank) const {
  const auto index = static_cast<std::size_t>(local_rank);
  if (local_rank < 0 || index >= index_of_local_rank_.size() || index_of_local_rank_[index] < 0) return nullptr;
  return &workers_[static_cast<std::size_t>(index_of_local_rank_[index])];
}

StreamPlan Output::Impl::plan_of(StreamId id, int local_rank) const {
  StreamPlaces places;
  places.files = layout.files_allowed();
  places.terminal = lanes_[index_of(id)]->console->is_terminal();
  return plan_stream(options_.log, id, local_rank, options_.local_world_size, places);
}

std::string Output::Impl::log_of(StreamId id, int local_rank) const {
  return plan_of(id, local_rank).file ? layout.stream_log(id, local_rank) : "";
}

int Output::Impl::descriptors_of(int local_rank) const {
  int count = 0;
  for (const StreamId id : {StreamId::out, StreamId::err}) {
    const StreamPlan plan = plan_of(id, local_rank);
    if (plan.kind == StreamPlan::Kind::piped) count += plan.file ? 2 : 1;
  }
  return count;
}

std::string Output::Impl::prefix_of(const Worker& worker, bool teed) const {
  return line_prefix(options_.log, {.role = options_.role,
                                    .hostname = options_.hostname,
                                    .rank = worker.identity.rank,
                                    .local_rank = worker.identity.local_rank,
                                    .local_world_size = options_.local_world_size,
                                    .teed = teed});
}

Error Output::Impl::too_many_descriptors(const std::string& what, int err) const {
  struct rlimit limit {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  rlim_t needed = descriptors_besides;
  for (const Worker& worker : workers_) needed += static_cast<rlim_t>(descriptors_of(worker.identity.local_rank));
  std::string message = concat("cannot open ", what, ": ");
  if (err == ENFILE) {
    message += concat("the system's limit of open files is reached; this job needs about ", needed);
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
  auto err = open_stream(*worker, StreamId::err);
  if (!err) return tl::unexpected<Error>(err.error());
  ChildStreams streams{std::move(*out), std::move(*err)};
  for (std::size_t i = 2; i-- > 0;) {
    if (worker->streams[i] && worker->streams[i]->pty) streams.terminal = static_cast<int>(i) + 1;
  }
  return streams;
}

Result<UniqueFd> Output::Impl::open_stream(Worker& worker, StreamId id) {
  const StreamPlan plan = plan_of(id, worker.identity.local_rank);
  if (plan.kind == StreamPlan::Kind::inherit) return UniqueFd();
  if (plan.kind == StreamPlan::Kind::piped) return open_pipe(worker, id, plan);
  const bool file = plan.kind == StreamPlan::Kind::direct_file;
  const std::string path = file ? layout.stream_log(id, worker.identity.local_rank) : "/dev/null";
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC | (file ? O_APPEND | O_CREAT : 0), 0666));
  if (fd) return fd;
  if (descriptors_are_out(errno)) return tl::unexpected<Error>(too_many_descriptors(path, errno));
  // No place for the file (or for its directory, before). Through a pipe the worker can run, and the file is tried
  // again as long as something is written to it.
  if (file && (disk_is_full(errno) || errno == ENOENT)) return open_pipe(worker, id, plan);
  return fail_errno(Errc::unavailable, concat("cannot open ", path), errno);
}

Result<UniqueFd> Output::Impl::open_pipe(Worker& worker, StreamId id, const StreamPlan& plan) {
  auto stream = std::make_shared<WorkerStream>();
  const int local_rank = worker.identity.local_rank;
  if (plan.file) {
    stream->file = std::make_unique<LogFile>(layout.stream_log(id, local_rank), options_.log.rotate_bytes);
    if (!stream->file->open()) {
      const int err = errno;
      if (descriptors_are_out(err)) return tl::unexpected<Error>(too_many_descriptors(stream->file->path(), err));
      if (!disk_is_full(err)) return fail(Errc::unavailable, stream->file->first_error());
      say_first_loss(stream->file->first_error());
    }
  }
  auto pipe = make_ends(worker, id, plan, stream->pty);
  if (!pipe) {
    const int err = pipe.error().cause.value();
    if (!descriptors_are_out(err)) return tl::unexpected<Error>(pipe.error());
    return tl::unexpected<Error>(too_many_descriptors(concat("a pipe for local rank ", local_rank), err));
  }
  if (auto watched = pipes_.add(pipe->read.get(), stream.get()); !watched) return tl::unexpected(watched.error());
  stream->pipe = std::move(pipe->read);
  if (plan.console) stream->lane = lanes_[index_of(id)];
  if (plan.console || plan.duplicate) stream->prefix = prefix_of(worker, plan.teed);
  if (plan.duplicate && filtered_logs_[index_of(id)]) {
    const auto& filters =
        id == StreamId::out ? options_.log.duplicate_stdout_filters : options_.log.duplicate_stderr_filters;
    stream->duplicate.reset(new Duplicate{&filters, filtered_logs_[index_of(id)].get(), {}});
  }
  if (id == StreamId::err) stream->tail = std::make_unique<TailBuffer>();
  stream->rank = worker.identity.rank;
  worker.streams[index_of(id)] = stream;
  ++open_streams_;
  return std::move(pipe->write);
}

Result<Pipe> Output::Impl::make_ends(const Worker& worker, StreamId id, const StreamPlan& plan, bool& pty) {
  pty = plan.pty && !ptys_refused_;
  if (pty) {
    auto made = PseudoTerminal::open(screen_of(worker, id, plan.teed));
    if (made) return Pipe{std::move(made->master), std::move(made->slave)};
    if (options_.log.pty == PtyUse::always || descriptors_are_out(made.error().cause.value())) {
      return tl::unexpected<Error>(made.error());
    }
    pty = false;
    ptys_refused_ = true;
    say(Level::notice, concat(made.error().message, "; workers get pipes"));
  }
  auto pipe = make_pipe();
  // The reading end alone: the other one is the worker's.
  if (pipe) ::fcntl(pipe->read.get(), F_SETFL, O_NONBLOCK);
  return pipe;
}

ScreenSize Output::Impl::screen_of(const Worker& worker, StreamId id, bool teed) const {
  const int console = id == StreamId::out ? options_.console_out : options_.console_err;
  std::size_t width = screen_width(prefix_of(worker, teed));
  if (options_.log.timestamps) width += time_stamp({}).size();
  return screen_size(console).less(width);
}

void Output::Impl::screen_resized() {
  for (const Worker& worker : workers_) {
    for (const StreamId id : {StreamId::out, StreamId::err}) {
      const auto& stream = worker.streams[index_of(id)];
      if (!stream || !stream->pty || !stream->pipe) continue;
      resize(stream->pipe, screen_of(worker, id, plan_of(id, worker.identity.local_rank).teed));
    }
  }
}

bool Output::Impl::consoles_done() const {
  return std::all_of(lane_storage_.begin(), lane_storage_.end(),
                     [](const Lane& lane) { return !lane.console || lane.console->queued() == 0; });
}

std::uint64_t Output::Impl::taken_bytes() const {
  std::uint64_t total = 0;
  for (const Lane& lane : lane_storage_) {
    if (lane.console) total += lane.console->taken_bytes();
  }
  return total;
}

void Output::Impl::add_waiter(bool for_attempt, std::function<void()> done) {
  waiters_.push_back({for_attempt, std::move(done)});
  for (Lane& lane : lane_storage_) {
    if (lane.console) lane.console->flush();
  }
  check_waiters();
  if (waiters_.empty()) return;
  if (gave_up_) return give_up();
  if (patience_) watch_progress();
}

void Output::Impl::hurry(Milliseconds patience) {
  if (std::exchange(patience_, patience) || waiters_.empty()) return;
  watch_progress();
}

/// A reader that makes progress is waited for, however slow it is.
void Output::Impl::watch_progress() {
  patience_timer_.expires_after(*patience_);
  patience_timer_.async_wait([this, self = self_, before = taken_bytes()](const boost::system::error_code& cancelled) {
    const auto alive = self.lock();
    if (cancelled || !alive || shut_down_ || waiters_.empty()) return;
    if (taken_bytes() == before) give_up();
    else watch_progress();
  });
}

void Output::Impl::give_up() {
  gave_up_ = true;
  patience_timer_.cancel();
  const bool for_attempt =
      std::any_of(waiters_.begin(), waiters_.end(), [](const Waiter& waiter) { return waiter.for_attempt; });
  if (for_attempt) forget_pipes();
  for (Waiter& waiter : std::exchange(waiters_, {})) finish(std::move(waiter));
}

void Output::Impl::check_waiters() {
  if (open_streams_ == 0) say_who_is_held_open();
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

void Output::Impl::async_end_attempt(std::function<void()> done) {
  // Most pipes are at their end by now: seeing that here saves a turn of the loop for each. In the others is all that
  // there will ever be, unless somebody holds them who is not of the job.
  for (Worker& worker : workers_) {
    for (auto& stream : worker.streams) {
      if (!stream) continue;
      ended(*stream);
      const bool read = !stream->held_back && drain_stream(*stream);
      if (stream->pipe) close_when_read(*stream, read ? 0 : unread_in(*stream));
    }
  }
  add_waiter(true, std::move(done));
}

void Output::Impl::read_file_tail(FileTail& file, const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == file.read_to) return;
  constexpr auto most = static_cast<off_t>(TailBuffer::limit);
  const off_t from = std::max(info.st_size < file.read_to ? 0 : file.read_to, info.st_size - most);
  if (from != file.read_to) file.tail.skip();
  std::string text(static_cast<std::size_t>(info.st_size - from), '\0');
  const ssize_t count = ::pread(fd.get(), text.data(), text.size(), from);
  if (count <= 0) return;
  const auto written = std::chrono::seconds(info.st_mtim.tv_sec) + std::chrono::nanoseconds(info.st_mtim.tv_nsec);
  file.tail.add(
      {text.data(), static_cast<std::size_t>(count)},
      std::chrono::system_clock::time_point(std::chrono::duration_cast<std::chrono::system_clock::duration>(written)));
  file.read_to = from + count;
}

void Output::Impl::read_file_tails() {
  for (Worker& worker : workers_) {
    if (worker.streams[1]) continue;
    const std::string path = log_of(StreamId::err, worker.identity.local_rank);
    if (path.empty()) continue;
    if (!worker.file_tail) worker.file_tail = std::make_unique<FileTail>();
    read_file_tail(*worker.file_tail, path);
  }
}

std::vector<TailLine> Output::Impl::stderr_tail(int local_rank, std::size_t lines) const {
  const Worker* worker = find(local_rank);
  if (worker == nullptr) return {};
  if (const auto& stream = worker->streams[1]; stream && stream->tail) return stream->tail->lines(lines);
  return worker->file_tail ? worker->file_tail->tail.lines(lines) : std::vector<TailLine>();
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
  for (const Lane& lane : lane_storage_) {
    if (!lane.console) continue;
    if (lane.console->reader_left()) {
      report.unwanted_bytes += lane.console->lost_bytes();
      continue;
    }
    if (lane.console->lost_bytes() == 0) continue;
    report.console_bytes += lane.console->lost_bytes();
    if (report.console_error.empty()) report.console_error = lane.console->first_error();
  }
  return report;
}

Output::Output(boost::asio::any_io_executor executor, OutputOptions options)
    : impl_(std::make_shared<Impl>(std::move(executor), std::move(options))) {
  impl_->self_ = impl_;
}
Output::~Output() { impl_->shut_down(); }

Result<void> Output::prepare() { return impl_->prepare(); }
Result<void> Output::begin_attempt(int attempt, const std::vector<WorkerIdentity>& workers) {
  return impl_->begin_attempt(attempt, workers);
}
Result<ChildStreams> Output::open_streams(int local_rank) { return impl_->open_streams(local_rank); }
int Output::descriptors_per_worker(int local_rank) const { return impl_->descriptors_of(local_rank); }
void Output::drain(int local_rank) { impl_->drain(local_rank); }
void Output::drain_all() { impl_->drain_all(); }
void Output::screen_resized() { impl_->screen_resized(); }
void Output::async_end_attempt(std::function<void()> done) { impl_->async_end_attempt(std::move(done)); }
void Output::async_flush(std::function<void()> done) { impl_->async_flush(std::move(done)); }
bool Output::is_flushed() const { return impl_->consoles_done(); }
void Output::hurry(Milliseconds patience) { impl_->hurry(patience); }
void Output::give_up() { impl_->give_up(); }
bool Output::close() { return impl_->close(); }
void Output::read_file_tails() { impl_->read_file_tails(); }
std::vector<TailLine> Output::stderr_tail(int local_rank, std::size_t lines) const {
  return impl_->stderr_tail(local_rank, lines);
}
std::uint64_t Output::lines_shown() const { return impl_->lines_shown(); }
bool Output::console_shows_stderr(int local_rank) const { return impl_->plan_of(StreamId::err, local_rank).console; }
std::string Output::stdout_log(int local_rank) const { return impl_->log_of(StreamId::out, local_rank); }
std::string Output::stderr_log(int local_rank) const { return impl_->log_of(StreamId::err, local_rank); }
std::string Output::error_file(int local_rank) const { return impl_->layout.error_file(local_rank); }
std::string Output::attempt_dir() const { return impl_->layout.attempt_dir(); }
std::string Output::root() const { return impl_->layout.root(); }
void Output::console_line(std::string_view text) { impl_->console_line(text, StreamId::err); }
void Output::stdout_line(std::string_view text) { impl_->console_line(text, StreamId::out); }
LossReport Output::losses() const { return impl_->losses(); }
void Output::remove_if_unused() { impl_->layout.remove_if_unused(); }

}  // namespace ddrun::logs
