#include "worker_streams.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/io_context.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"
#include "line_prefix.hpp"

namespace ddrun::logs {

namespace {

/// Descriptors that are handled in one turn of the event loop, and the time after which the others wait for the next.
constexpr int max_events = 64;
constexpr Milliseconds max_turn{10};

/// One read of one worker, for fairness.
constexpr std::size_t max_read_bytes = std::size_t{256} << 10U;
/// A read that finds so much has found the pipe full, of 64 KiB as the kernel makes it.
constexpr std::size_t full_pipe_bytes = std::size_t{32} << 10U;
/// drain() may fill a console's queue up to this many times its bound.
constexpr std::size_t drain_factor = 16;

/// Bytes that can be read now; of a pseudo-terminal, whose number is unknown, an upper bound.
std::size_t unread_in(const WorkerStream& stream) {
  if (stream.pty) return PseudoTerminal::capacity;
  int count = 0;
  return ::ioctl(stream.pipe.get(), FIONREAD, &count) == 0 && count > 0 ? static_cast<std::size_t>(count) : 0;
}

}  // namespace

ReadySet::ReadySet(boost::asio::any_io_executor executor, std::function<void(void*)> on_ready)
    : epoll_(std::move(executor)), on_ready_(std::move(on_ready)), self_(std::make_shared<ReadySet*>(this)) {}

ReadySet::~ReadySet() { close(); }

Result<void> ReadySet::open() {
  const int err = assign_descriptor(epoll_, UniqueFd(::epoll_create1(EPOLL_CLOEXEC)));
  if (err != 0) return fail_errno(Errc::unavailable, "cannot watch the workers' output", err);
  events_ = std::make_unique<epoll_event[]>(max_events);
  wait();
  return {};
}

Result<void> ReadySet::add(int fd, void* tag) {
  if (!epoll_.is_open()) TRY(open());
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = tag;
  if (::epoll_ctl(epoll_.native_handle(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return fail_errno(Errc::unavailable, "cannot watch a worker's output", errno);
  }
  return {};
}

void ReadySet::remove(int fd, void* tag) {
  if (!epoll_.is_open()) return;
  ::epoll_ctl(epoll_.native_handle(), EPOLL_CTL_DEL, fd, nullptr);
  for (int i = next_; i < event_count_; ++i) {
    if (events_[i].data.ptr == tag) events_[i].data.ptr = nullptr;
  }
}

void ReadySet::change(int fd, void* tag, unsigned events) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = tag;
  ::epoll_ctl(epoll_.native_handle(), EPOLL_CTL_MOD, fd, &event);
}

// EPOLLHUP cannot be masked; edge-triggered it is reported only once.
void ReadySet::pause(int fd, void* tag) { change(fd, tag, EPOLLET); }

void ReadySet::resume(int fd, void* tag) { change(fd, tag, EPOLLIN); }

void ReadySet::watch_edges(int fd, void* tag) { change(fd, tag, EPOLLIN | EPOLLET); }

void ReadySet::close() {
  *self_ = nullptr;
  event_count_ = 0;
  boost::system::error_code ignored;
  epoll_.close(ignored);
}

void ReadySet::wait() {
  // Level-triggered: descriptors that are still ready end the next wait at once.
  epoll_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                    [self = self_](const boost::system::error_code& failed) {
                      if (failed || *self == nullptr) return;
                      (*self)->dispatch_events();
                      if (*self != nullptr) (*self)->wait();
                    });
}

void ReadySet::dispatch_events() {
  const auto self = self_;
  if (next_ >= event_count_) {
    ++turns_;
    event_count_ = ::epoll_wait(epoll_.native_handle(), events_.get(), max_events, 0);
    next_ = 0;
  }
  for (const Deadline end = Clock::now() + max_turn; next_ < event_count_ && Clock::now() < end;) {
    void* tag = events_[next_++].data.ptr;
    if (tag != nullptr) on_ready_(tag);
    if (*self == nullptr) return;
  }
}

WorkerStreams::WorkerStreams(boost::asio::any_io_executor executor, const OutputOptions& options,
                             const Consoles& consoles, AttemptFiles& files, std::function<void()> on_all_closed)
    : options_(options),
      consoles_(consoles),
      files_(files),
      on_all_closed_(std::move(on_all_closed)),
      pipes_(std::move(executor), [this](void* stream) { on_readable(*static_cast<WorkerStream*>(stream)); }) {}

const WorkerStream* WorkerStreams::find(int slot, StreamId id) const {
  const auto found = streams_.find({slot, id});
  return found != streams_.end() ? &found->second : nullptr;
}

// ---- opening

Result<ChildStreams> WorkerStreams::open(const WorkerIdentity& worker, const StreamPlan& out, const StreamPlan& err,
                                         bool shared) {
  ChildStreams ends;
  ends.out = TRY(open_stream(worker, StreamId::out, out));
  if (shared) streams_[{worker.slot, StreamId::out}].tail = std::make_unique<TailBuffer>();
  ends.err = TRY(shared ? duplicate(ends.out.get()) : open_stream(worker, StreamId::err, err));
  for (const StreamId id : {StreamId::err, StreamId::out}) {
    const WorkerStream* stream = find(worker.slot, id);
    if (stream != nullptr && stream->pty) ends.terminal = id == StreamId::out ? 1 : 2;
  }
  if (!reads_terminal(worker, out)) return ends;
  return open_input(worker, std::move(ends));
}

Result<ChildStreams> WorkerStreams::open_input(const WorkerIdentity& worker, ChildStreams ends) {
  const auto out = streams_.find({worker.slot, StreamId::out});
  WorkerStream* const shown = out != streams_.end() && out->second.console != nullptr ? &out->second : nullptr;
  WorkerStream* input = shown;
  auto slave = duplicate(ends.out.get());
  if (shown == nullptr || !shown->pty) {
    const WorkerIdentity echo{worker.rank, echo_key(worker.slot), prefix_of(worker)};
    slave = open_pipe(echo, StreamId::out, {.kind = StreamPlan::Kind::piped, .console = shown == nullptr, .pty = true});
    input = &streams_[{echo.slot, StreamId::out}];
    input->echo_of = shown;
  }
  if (!slave) return tl::unexpected(slave.error());
  if (!input->pty) return ends;  // the system has none: the worker reads ddrun's stdin
  auto master = TRY(duplicate(input->pipe.get()));
  ends.in = std::move(*slave);
  ends.in_master = std::move(master);
  ends.terminal = STDIN_FILENO;
  return ends;
}

Result<UniqueFd> WorkerStreams::open_stream(const WorkerIdentity& worker, StreamId id, const StreamPlan& plan) {
  if (plan.kind == StreamPlan::Kind::inherit) return UniqueFd();
  if (plan.kind == StreamPlan::Kind::piped) return open_pipe(worker, id, plan);
  const bool file = plan.kind == StreamPlan::Kind::direct_file;
  const std::string path = file ? files_.layout().stream_log(id, worker.slot) : "/dev/null";
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC | (file ? O_APPEND | O_CREAT : 0), 0666));
  if (fd) return fd;
  const int err = errno;
  // The disk is full, or the directory is missing. With a pipe the worker can run, and LogFile retries.
  if (file && !is_out_of_descriptors(err) && (files_.may_continue_without_file(err) || err == ENOENT)) {
    return open_pipe(worker, id, plan);
  }
  auto failed = fail_errno(Errc::unavailable, concat("cannot open ", path), err);
  return tl::unexpected(files_.explain_descriptors(path, std::move(failed.value())));
}

Result<UniqueFd> WorkerStreams::open_pipe(const WorkerIdentity& worker, StreamId id, const StreamPlan& plan) {
  WorkerStream& stream = streams_[{worker.slot, id}];
  stream.slot = std::max(worker.slot, echo_key(worker.slot));
  if (plan.file) stream.file = TRY(files_.open_log(id, worker.slot));
  stream.shown = shown_stream(worker, id);
  RankConsole& console = console_of(consoles_, id);
  stream.pty = plan.pty;
  const bool reads = worker.slot < 0 || (id == StreamId::out && reads_terminal(worker, plan));
  const ScreenSize screen = plan.pty ? console.worker_screen(stream.shown) : ScreenSize();
  auto pipe = make_ends(screen, stream.pty, reads ? &options_.input_settings : nullptr);
  if (!pipe) {
    const std::string what = concat("a pipe for local rank ", place_of(worker).local_rank);
    return tl::unexpected(files_.explain_descriptors(what, std::move(pipe.error())));
  }
  TRY(pipes_.add(pipe->read.get(), &stream));
  stream.pipe = std::move(pipe->read);
  if (plan.duplicate) stream.duplicate = files_.open_duplicate(id, prefix_of(worker));
  if (plan.console) {
    stream.console = &console;
    stream.closes_unread = plan.closes_unread;
    console.open_stream(stream.shown);
  }
  if (id == StreamId::err) stream.tail = std::make_unique<TailBuffer>();
  ++open_count_;
  return std::move(pipe->write);
}

std::string WorkerStreams::prefix_of(const WorkerIdentity& worker) const {
  if (!worker.prefix.empty()) return worker.prefix;
  const WorkerPlace& place = place_of(worker);
  return line_prefix(options_.log, {.role = options_.program_of(place).role,
                                    .hostname = options_.hostname,
                                    .rank = worker.rank,
                                    .local_rank = place.local_rank,
                                    .workers = options_.workers(),
                                    .with_role = options_.has_several_programs()});
}

RankStream WorkerStreams::shown_stream(const WorkerIdentity& worker, StreamId id) const {
  const LogSpec& log = options_.log;
  RankStream shown;
  const WorkerPlace& place = place_of(worker);
  const int slot = static_cast<int>(&place - options_.places.data());
  const auto behind = std::ranges::upper_bound(options_.places, place.program, {}, &WorkerPlace::program);
  const bool several = options_.has_several_programs() && worker.prefix.empty();
  shown.rank = worker.rank;
  shown.position = several ? slot : worker.rank;
  shown.highest_rank = worker.rank - slot + static_cast<int>(behind - options_.places.begin()) - 1;
  if (several) shown.role = options_.program_of(place).role;
  shown.scope = shown.role;
  shown.prefix = prefix_of(worker);
  shown.labelled = worker.prefix.empty() && log.line_prefix_template.empty();
  if (log.label == Label::host) shown.scope = concat(options_.hostname, several ? ":" : "", shown.scope);
  shown.is_input = is_input(worker);
  shown.is_error = id == StreamId::err;
  return shown;
}

Result<Pipe> WorkerStreams::make_ends(ScreenSize screen, bool& pty, const termios* input) {
  pty = pty && !ptys_unavailable_;
  if (pty) {
    auto made = PseudoTerminal::open(screen, input);
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

void WorkerStreams::resize_screens() {
  // The kernel's SIGWINCH comes with the size of the pseudo-terminal for input: it is after that of stderr.
  for (auto at = streams_.rbegin(); at != streams_.rend(); ++at) {
    const auto& [key, stream] = *at;
    if (stream.pty && stream.pipe) resize(stream.pipe, console_of(consoles_, key.second).worker_screen(stream.shown));
  }
}

// ---- reading: from a worker's pipe to its log file, to the console in whole lines, to filtered logs

void WorkerStreams::on_readable(WorkerStream& stream) {
  if (stream.paused) return;
  if (stream.console != nullptr && stream.console->console().has_back_pressure()) {
    // Back pressure: the pipe fills up, and the worker blocks.
    stream.paused = true;
    paused_.push_back(&stream);
    pipes_.pause(stream.pipe.get(), &stream);
    return;
  }
  const auto count = read_once(stream);
  if (!count) return on_end_of_stream(stream);
  if (stream.closes_unread && stream.console->console().reader_closed()) return close_unread();
  if (stream.unread_limit != WorkerStream::unbounded) {
    std::size_t rest = stream.unread_limit - std::min(stream.unread_limit, *count);
    if (stream.pty && drain_stream(stream)) rest = 0;  // the number of its bytes is unknown
    if (stream.pipe) close_after_bytes(stream, rest);
    if (!stream.pipe) return;
  }
  if (std::exchange(stream.has_no_writer, false)) pipes_.resume(stream.pipe.get(), &stream);
}

std::optional<std::size_t> WorkerStreams::read_once(WorkerStream& stream) {
  if (!read_buffer_) {
    read_buffer_.reset(new char[max_read_bytes]);
    if (options_.on_first_output) options_.on_first_output();
  }
  const ssize_t size = ::read(stream.pipe.get(), read_buffer_.get(), max_read_bytes);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  if (size <= 0) return std::nullopt;
  const auto count = static_cast<std::size_t>(size);
  if (count >= full_pipe_bytes && !stream.pty && !stream.is_large) enlarge(stream);
  process_chunk(stream, {read_buffer_.get(), count});
  return count;
}

/// The worker and ddrun wait for each other less often.
void WorkerStreams::enlarge(WorkerStream& stream) {
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

void WorkerStreams::process_chunk(WorkerStream& stream, std::string_view chunk) {
  if (stream.file) files_.write(*stream.file, chunk);
  if (stream.duplicate) files_.copy_matching(*stream.duplicate, chunk, false);
  WorkerStream& shown = stream.echo_of != nullptr ? *stream.echo_of : stream;
  if (shown.console != nullptr && shown.pipe) shown.console->feed(shown.shown, chunk);
  const LastWrite now{std::chrono::system_clock::now(), pipes_.turns()};
  if (!is_stopping_) stream.last = now;
  if (stream.tail) stream.tail->add(chunk, now.at, lines_shown(consoles_), now.turn);
}

void WorkerStreams::resume_paused() {
  std::erase_if(paused_, [&](WorkerStream* stream) {
    if (stream->console->console().has_back_pressure()) return false;
    stream->paused = stream->has_no_writer = false;
    pipes_.resume(stream->pipe.get(), stream);
    return true;
  });
}

bool WorkerStreams::drain_stream(WorkerStream& stream) {
  if (!stream.pipe) return true;
  if (stream.console != nullptr && !stream.file && !stream.duplicate &&
      stream.console->console().queued() > options_.queue_high * drain_factor) {
    return false;  // its bytes are safe in the pipe until the console has room
  }
  // Only what is there now: a grandchild may go on writing without end.
  const std::size_t available = unread_in(stream);
  for (std::size_t total = 0;;) {
    const bool last = total >= available;
    const auto count = read_once(stream);
    if (!count) on_end_of_stream(stream);
    if (last || count.value_or(0) == 0) return true;
    total += *count;
  }
}

void WorkerStreams::drain(int slot) {
  for (const Key& key : {Key{slot, StreamId::out}, Key{slot, StreamId::err}, Key{echo_key(slot), StreamId::out}}) {
    const auto found = streams_.find(key);
    if (found == streams_.end()) continue;
    on_worker_exit(found->second);
    drain_stream(found->second);
  }
}

void WorkerStreams::drain_all() {
  for (auto& [key, stream] : streams_) drain_stream(stream);
  is_stopping_ = true;
}

// ---- closing

void WorkerStreams::end_attempt(std::set<int> still_running) {
  still_running_ = std::move(still_running);
  // Most pipes are at their end by now: to read that here saves a turn of the loop for each. The others hold all of the
  // job's output already: only a process outside of the job could write more.
  for (auto& [key, stream] : streams_) {
    on_worker_exit(stream);
    const bool read = !stream.paused && drain_stream(stream);
    if (stream.pipe) close_after_bytes(stream, read ? 0 : unread_in(stream));
  }
}

void WorkerStreams::on_worker_exit(WorkerStream& stream) {
  stream.worker_exited = true;
  if (std::exchange(stream.has_no_writer, false)) pipes_.resume(stream.pipe.get(), &stream);
}

void WorkerStreams::on_end_of_stream(WorkerStream& stream) {
  if (!stream.pty || stream.worker_exited) return close(stream);
  // The worker runs and has closed its pseudo-terminal. To close the master would send it SIGHUP. It may open /dev/tty
  // and write later, which an edge reports.
  if (!std::exchange(stream.has_no_writer, true)) pipes_.watch_edges(stream.pipe.get(), &stream);
}

/// Workers see it at their next write, as in a pipe of their own.
void WorkerStreams::close_unread() {
  has_closed_unread_ = true;
  for (auto& [key, stream] : streams_) {
    if (stream.closes_unread) close(stream);
  }
}

/// All processes of the job are dead: reads `rest` more bytes even if another process holds the pipe open.
void WorkerStreams::close_after_bytes(WorkerStream& stream, std::size_t rest) {
  stream.unread_limit = rest;
  if (rest > 0) return;
  if (read_once(stream) && !still_running_.contains(stream.slot))
    leaked_.insert({stream.slot, {std::string(stream.shown.role), stream.shown.rank}});
  close(stream);
}

void WorkerStreams::close_all() {
  for (auto& [key, stream] : streams_) {
    drain_stream(stream);
    discard_rest(stream);
  }
}

void WorkerStreams::reset() {
  close_all();
  streams_.clear();
  is_stopping_ = false;
}

void WorkerStreams::discard_rest(WorkerStream& stream) {
  char unread[4096];
  for (std::size_t left = stream.pipe ? unread_in(stream) : 0; left > 0;) {
    const ssize_t size = ::read(stream.pipe.get(), unread, std::min(left, sizeof unread));
    if (size <= 0) break;
    if (stream.console != nullptr) stream.console->console().count_lost(static_cast<std::size_t>(size));
    left -= static_cast<std::size_t>(size);
  }
  close(stream);
}

void WorkerStreams::close(WorkerStream& stream) {
  if (!stream.pipe) return;
  // The echo of what the worker has read is shown as this stream's.
  const auto echo = streams_.find({echo_key(stream.slot), StreamId::out});
  if (echo != streams_.end() && echo->second.echo_of == &stream) drain_stream(echo->second);
  pipes_.remove(stream.pipe.get(), &stream);
  stream.pipe.reset();
  if (stream.paused) std::erase(paused_, &stream);
  if (std::exchange(stream.is_large, false)) --large_pipes_;
  if (stream.duplicate) files_.copy_matching(*stream.duplicate, {}, true);
  if (stream.console != nullptr) stream.console->close_stream(stream.shown);
  stream.file.reset();  // frees its descriptor for the next attempt
  if (--open_count_ > 0) return;
  warn_leaked_pipes();
  on_all_closed_();
}

void WorkerStreams::warn_leaked_pipes() {
  if (leaked_.empty()) return;
  std::vector<RankName> ranks;
  for (auto& [slot, name] : std::exchange(leaked_, {})) ranks.push_back(std::move(name));
  say(Level::notice,
      concat(name_workers(ranks), ranks.size() == 1 ? " is" : " are",
             " gone, but another process holds the output open; what it writes from now on is not shown"));
}

}  // namespace ddrun::logs
