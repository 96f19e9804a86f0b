#include "ddrun/logs/output.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "line_prefix.hpp"
#include "log_files.hpp"
#include "worker_streams.hpp"

namespace ddrun::logs {

/// Waits until workers' streams are at their end and the consoles' queues are empty. Used on the executor's thread
/// only; never blocks. No callback comes after its destruction.
class FlushWait {
 public:
  /// Both are borrowed.
  FlushWait(boost::asio::any_io_executor executor, const Consoles& consoles, WorkerStreams& streams)
      : consoles_(consoles), streams_(streams), timer_(std::move(executor)) {}

  /// Calls `done`, never from within, once the queues are empty and, `for_attempt`, all streams are closed.
  void add(bool for_attempt, std::function<void()> done) {
    waiters_.push_back({for_attempt, std::move(done)});
    for (const auto& console : consoles_) {
      console->release();
      console->flush_now();
    }
    check();
    if (waiters_.empty()) return;
    if (aborted_) return abort();
    if (timeout_) watch_progress();
  }

  /// To be called when a queue has run empty and when the last stream is closed.
  void check() {
    if (waiters_.empty() || !queues_empty()) return;
    for (Waiter& waiter : std::exchange(waiters_, {})) {
      if (!waiter.for_attempt || streams_.open_count() == 0) finish(std::move(waiter));
      else waiters_.push_back(std::move(waiter));
    }
  }

  /// Bounds the waits: abort() when no console has taken a byte for `timeout`.
  void set_timeout(Milliseconds timeout) {
    if (std::exchange(timeout_, timeout) || waiters_.empty()) return;
    watch_progress();
  }

  /// Ends these waits and all later ones.
  void abort() {
    aborted_ = true;
    timer_.cancel();
    if (std::ranges::any_of(waiters_, &Waiter::for_attempt)) streams_.close_all();
    for (Waiter& waiter : std::exchange(waiters_, {})) finish(std::move(waiter));
  }

  /// Drops what waits without a callback.
  void cancel() {
    waiters_.clear();
    timer_.cancel();
  }

  [[nodiscard]] bool is_waiting() const { return !waiters_.empty(); }
  [[nodiscard]] bool queues_empty() const {
    return std::ranges::all_of(consoles_, [](const auto& console) { return console->console().queued() == 0; });
  }

 private:
  struct Waiter {
    bool for_attempt;
    std::function<void()> done;
  };

  [[nodiscard]] std::uint64_t written_bytes() const {
    std::uint64_t total = 0;
    for (const auto& console : consoles_) total += console->console().written_bytes();
    return total;
  }

  /// The timeout begins again with each byte written: a slow reader gets everything.
  void watch_progress() {
    timer_.expires_after(*timeout_);
    timer_.async_wait([this, alive = std::weak_ptr(alive_), before = written_bytes()](const auto& cancelled) {
      if (cancelled || alive.expired() || waiters_.empty()) return;
      if (written_bytes() == before) abort();
      else watch_progress();
    });
  }

  void finish(Waiter waiter) {
    boost::asio::post(timer_.get_executor(), [alive = std::weak_ptr(alive_), done = std::move(waiter.done)] {
      if (!alive.expired()) done();
    });
  }

  const Consoles& consoles_;
  WorkerStreams& streams_;
  boost::asio::steady_timer timer_;
  std::vector<Waiter> waiters_;
  std::optional<Milliseconds> timeout_;
  bool aborted_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

Output::Output(boost::asio::any_io_executor executor, OutputOptions options) : options_(std::move(options)) {
  // Where a worker writes to ddrun's stdout itself, its lines and ddrun's keep their order only there.
  if (options_.log.frames && options_.decorates()) {
    std::tie(options_.console_out, options_.console_err) = *options_.log.frames;
  } else {
    options_.log.frames.reset();
  }
  const auto open_console = [&](int fd) {
    RankConsoleOptions of_console(options_.log, ::isatty(fd) == 1);
    of_console.first_key = consoles_.empty() ? 1 : UINT32_MAX / 2;
    of_console.fold = of_console.fold && options_.workers() > 1;
    of_console.queue_high = options_.queue_high;
    of_console.idle_flush_delay = options_.idle_flush_delay;
    consoles_.push_back(std::make_unique<RankConsole>(executor, fd, std::move(of_console)));
    consoles_.back()->console().on_drained([this] { on_console_drained(); });
  };
  open_console(options_.console_out);
  if (!Console::same_file(options_.console_out, options_.console_err)) open_console(options_.console_err);
  files_ = std::make_unique<AttemptFiles>(options_, consoles_);
  streams_ = std::make_unique<WorkerStreams>(executor, options_, consoles_, *files_, [this] { flush_->check(); });
  flush_ = std::make_unique<FlushWait>(executor, consoles_, *streams_);
}

Output::~Output() { close(); }

Result<void> Output::prepare() {
  if (options_.log.fold == When::always && options_.workers() == 1) {
    say(Level::warning, "--fold=always has no effect with one worker");
  }
  if (options_.log.progress == Progress::rows && !consoles_.front()->console().can_erase()) {
    say(Level::warning, "--progress=rows needs a terminal; of each progress bar the last state is shown (last)");
  }
  TRY(check_template(options_.log.line_prefix_template));
  for (const auto& [name, filters] :
       {std::pair{"--duplicate-stdout-filters", &options_.log.duplicate_stdout_filters},
        std::pair{"--duplicate-stderr-filters", &options_.log.duplicate_stderr_filters}}) {
    if (std::ranges::any_of(*filters, &std::string::empty)) {
      return fail(Errc::invalid_argument, concat(name, ": an empty filter matches every line; leave it out"));
    }
  }
  return files_->layout().prepare(options_.announce_private_directory);
}

// ---- attempts

Result<void> Output::begin_attempt(int attempt, const std::vector<int>& ranks) {
  reset_attempt();
  ranks_ = ranks;
  return files_->begin_attempt(attempt);
}

void Output::reset_attempt() {
  streams_->reset();
  files_->end_attempt();
  ranks_.clear();
}

Result<ChildStreams> Output::open_streams(int slot) {
  const auto index = static_cast<std::size_t>(slot);
  if (index >= ranks_.size()) return fail(Errc::invalid_argument, concat("slot ", slot, " is not in this attempt"));
  return streams_->open({ranks_[index], slot}, files_->plan_of(StreamId::out, slot),
                        files_->plan_of(StreamId::err, slot), files_->shares_stream(slot));
}

Result<ChildStreams> Output::open_extra_streams(std::string prefix, bool as_worker) {
  reset_attempt();
  const auto plan = [&](StreamId id) {
    const StreamPlan of_worker = files_->plan_of(id, 0);
    const bool inherits = of_worker.kind == StreamPlan::Kind::inherit;
    const bool pty = inherits ? console_of(consoles_, id).console().is_terminal() : of_worker.pty;
    return StreamPlan{.kind = StreamPlan::Kind::piped, .console = true, .pty = as_worker && pty};
  };
  const StreamPlan out = plan(StreamId::out);
  const StreamPlan err = plan(StreamId::err);
  auto streams = streams_->open({0, 0, std::move(prefix)}, out, err, consoles_.size() == 1 && out.pty == err.pty);
  if (streams) streams->terminal = -1;
  return streams;
}

int Output::descriptors_per_worker(int slot) const { return files_->descriptors_of(slot); }
void Output::drain(int slot) { streams_->drain(slot); }
void Output::drain_all() { streams_->drain_all(); }
void Output::screen_resized() {
  streams_->resize_screens();
  for (const auto& console : consoles_) console->resize();
}

void Output::set_suspended(bool suspended) {
  for (const auto& console : consoles_) console->set_suspended(suspended);
}

void Output::async_end_attempt(std::function<void()> done, std::set<int> still_running) {
  streams_->end_attempt(std::move(still_running));
  flush_->add(true, std::move(done));
}

// ---- end of the job

void Output::async_flush(std::function<void()> done) { flush_->add(false, std::move(done)); }
bool Output::is_flushed() const { return flush_->queues_empty(); }
void Output::set_flush_timeout(Milliseconds timeout) { flush_->set_timeout(timeout); }
void Output::abort_flush() { flush_->abort(); }

bool Output::close() {
  flush_->cancel();
  reset_attempt();
  for (const auto& console : consoles_) console->close();
  return consoles_.back()->ends_mid_line();
}

void Output::trim() {
  streams_->trim();
  for (const auto& console : consoles_) console->console().trim();
}

namespace {

/// A worker that inherits stdout sees by itself that the reader has closed.
bool has_inherited_unread(const StreamPlan& plan) {
  pollfd out{.fd = STDOUT_FILENO, .events = 0, .revents = 0};
  return plan.closes_unread && plan.kind == StreamPlan::Kind::inherit && ::isatty(out.fd) == 0 &&
         ::poll(&out, 1, 0) > 0 && (out.revents & (POLLERR | POLLHUP)) != 0;
}

}  // namespace

LossReport Output::losses() const {
  LossReport report;
  report.first_error = files_->first_error();
  report.file_bytes = files_->lost_bytes();
  report.closed_unread = streams_->has_closed_unread() || has_inherited_unread(files_->plan_of(StreamId::out, 0));
  for (const auto& ranks : consoles_) {
    const Console& console = ranks->console();
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

// ---- what workers wrote, and where

void Output::read_file_tails() { files_->read_tails(); }

std::vector<TailLine> Output::stderr_tail(int slot, std::size_t lines) const {
  for (const StreamId id : {StreamId::out, StreamId::err}) {
    const WorkerStream* stream = streams_->find(slot, id);
    if (stream != nullptr && stream->tail) return stream->tail->lines(lines);
  }
  return files_->tail(slot, lines);
}

LastWrite Output::last_stdout(int slot) const {
  const WorkerStream* stream = streams_->find(slot, StreamId::out);
  if (static_cast<std::size_t>(slot) >= ranks_.size()) return {};
  if (stream == nullptr) return files_->last_write(StreamId::out, slot);
  return files_->shares_stream(slot) ? LastWrite{} : stream->last;
}

std::uint64_t Output::lines_shown() const { return logs::lines_shown(consoles_); }
bool Output::console_shows_stderr(int slot) const { return files_->plan_of(StreamId::err, slot).console; }
std::string Output::stdout_log(int slot) const { return files_->log_of(StreamId::out, slot); }
std::string Output::stderr_log(int slot) const { return files_->log_of(StreamId::err, slot); }
std::string Output::error_file(int slot) const { return files_->layout().error_file(slot); }
std::string Output::attempt_dir() const { return files_->layout().attempt_dir(); }
std::string Output::run_dir() const { return files_->layout().run_dir(); }
Result<void> Output::link_latest() const { return files_->layout().link_latest(); }
std::string Output::root() const { return files_->layout().root(); }
void Output::remove_error_files() { files_->layout().remove_error_files(); }
bool Output::remove_if_unused() { return files_->layout().remove_if_unused(); }

// ---- consoles

void Output::console_line(std::string_view text) {
  consoles_.back()->add_text(text);
  consoles_.back()->flush_now();
}

void Output::stdout_line(std::string_view text) {
  consoles_.front()->add_text(text);
  consoles_.front()->flush_now();
}

void Output::on_console_drained() {
  // Workers run on although their output is dropped.
  const Console& out = consoles_.front()->console();
  if (out.reader_closed() && !out.is_terminal() && streams_->open_count() > 0 && !flush_->is_waiting() &&
      !files_->plan_of(StreamId::out, 0).closes_unread && !std::exchange(notified_reader_closed_, true)) {
    say(Level::notice, "standard output has no reader any more; the job goes on, and Ctrl-C ends it");
  }
  streams_->resume_paused();
  for (const auto& console : consoles_) {
    if (!console->console().has_back_pressure()) console->flush();
  }
  flush_->check();
}

}  // namespace ddrun::logs
