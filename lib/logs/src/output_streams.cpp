// How bytes travel: from a worker's pipe to its log file, to the console in whole lines, to filtered logs.

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/logs/line_prefix.hpp"
#include "output_impl.hpp"

namespace ddrun::logs {

namespace {

/// One read takes at most this much from one worker, then the others have their turn.
constexpr std::size_t turn_size = std::size_t{256} << 10U;
/// A drained worker may fill a crowded console's queue up to this many times its bound.
constexpr std::size_t drain_factor = 16;
/// Unfinished lines of all streams together; whose line makes it more has it broken.
constexpr std::size_t most_held = std::size_t{32} << 20U;

}  // namespace

std::size_t unread_in(const WorkerStream& stream) {
  if (stream.pty) return PseudoTerminal::capacity;
  int count = 0;
  return ::ioctl(stream.pipe.get(), FIONREAD, &count) == 0 && count > 0 ? static_cast<std::size_t>(count) : 0;
}

void Output::Impl::readable(WorkerStream& stream) {
  if (stream.held_back) return;
  if (stream.lane != nullptr && stream.lane->console->crowded()) {
    // Not reading fills the pipe, and a full pipe makes the worker wait: that is the whole back-pressure.
    stream.held_back = true;
    stream.lane->held_back.push_back(stream.shared_from_this());
    pipes_.pause(stream.pipe.get(), &stream);
    return;
  }
  std::size_t count = 0;
  if (read_once(stream, count) == ReadResult::end) return at_end(stream);
  if (stream.rest != WorkerStream::unbounded) {
    std::size_t rest = stream.rest - std::min(stream.rest, count);
    if (stream.pty && drain_stream(stream)) rest = 0;  // it does not tell how much is in it
    if (stream.pipe) close_when_read(stream, rest);
    if (!stream.pipe) return;
  }
  if (stream.silent) {
    stream.silent = false;
    pipes_.resume(stream.pipe.get(), &stream);
  }
  expect_quiet(stream);
}

void Output::Impl::at_end(WorkerStream& stream) {
  if (!stream.pty || stream.has_ended) return close_stream(stream);
  // The worker lives and has closed what it wrote to. It may be its controlling terminal: closing our end would be a
  // SIGHUP for it. And it may open /dev/tty later, which tells by an edge that there is something again.
  if (stream.silent) return;
  stream.silent = true;
  pipes_.only_changes(stream.pipe.get(), &stream);
}

/// All processes of the job are gone: `rest` more bytes are read from the pipe, whoever else may hold it.
void Output::Impl::close_when_read(WorkerStream& stream, std::size_t rest) {
  stream.rest = rest;
  if (rest > 0) return;
  std::size_t count = 0;
  if (read_once(stream, count) != ReadResult::end) held_open_.push_back(stream.rank);
  close_stream(stream);
}

void Output::Impl::say_who_is_held_open() {
  if (held_open_.empty()) return;
  std::vector<int> ranks = std::exchange(held_open_, {});
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  say(Level::notice,
      concat(name_ranks(ranks), ranks.size() == 1 ? " is" : " are",
             " gone, but another process holds the output open; what it writes from now on is not shown"));
}

Output::Impl::ReadResult Output::Impl::read_once(WorkerStream& stream, std::size_t& count) {
  if (!read_buffer_) read_buffer_.reset(new char[turn_size]);
  const ssize_t size = ::read(stream.pipe.get(), read_buffer_.get(), turn_size);
  if (size > 0) {
    count = static_cast<std::size_t>(size);
    take(stream, {read_buffer_.get(), count});
    return ReadResult::data;
  }
  return size < 0 && (errno == EAGAIN || errno == EINTR) ? ReadResult::nothing : ReadResult::end;
}

void Output::Impl::take(WorkerStream& stream, std::string_view chunk) {
  if (stream.file) write_file(*stream.file, chunk);
  if (stream.duplicate) copy_matching(stream, chunk, false);
  if (stream.lane != nullptr) show(stream, chunk);
  if (stream.tail) stream.tail->add(chunk, std::chrono::system_clock::now(), lines_shown_);
}

std::string_view Output::Impl::stamped(const WorkerStream& stream) {
  if (!options_.log.timestamps) return stream.prefix;
  scratch_prefix_ = time_stamp(std::chrono::system_clock::now());
  scratch_prefix_ += stream.prefix;
  return scratch_prefix_;
}

void Output::Impl::add_to_console(WorkerStream& stream, std::string_view prefix, const Piece& piece) {
  stream.lane->console->add(&stream, prefix, piece);
  if (piece.end == PieceEnd::cut || piece.text.ends_with('\n')) ++lines_shown_;
}

void Output::Impl::show(WorkerStream& stream, std::string_view chunk) {
  Console& console = *stream.lane->console;
  if (console.gone()) return console.count_lost(chunk.size());
  const std::string_view prefix = stamped(stream);
  stream.lines.feed(chunk, [&](const Piece& piece) { add_to_console(stream, prefix, piece); });
  break_line_if_too_much_is_held(stream, prefix);
  console.flush_soon();
}

void Output::Impl::count_held(WorkerStream& stream) {
  const std::size_t now = stream.lines.held();
  held_ += now - stream.held;
  stream.held = now;
}

void Output::Impl::break_line_if_too_much_is_held(WorkerStream& stream, std::string_view prefix) {
  count_held(stream);
  if (held_ <= most_held || stream.held == 0) return;
  stream.lines.finish([&](const Piece& piece) { add_to_console(stream, prefix, piece); });
  count_held(stream);
}

void Output::Impl::copy_matching(WorkerStream& stream, std::string_view chunk, bool last) {
  Duplicate& duplicate = *stream.duplicate;
  scratch_lines_.clear();
  const auto copy = [&](const Piece& piece) {
    const auto matches = [&](const std::string& filter) { return piece.text.find(filter) != std::string_view::npos; };
    if (std::none_of(duplicate.filters->begin(), duplicate.filters->end(), matches)) return;
    scratch_lines_ += stream.prefix;
    scratch_lines_ += piece.text;
    if (piece.end == PieceEnd::cut) scratch_lines_ += '\n';
  };
  if (last) duplicate.lines.finish(copy);
  else duplicate.lines.feed(chunk, copy);
  if (!scratch_lines_.empty()) write_file(*duplicate.file, scratch_lines_);
}

void Output::Impl::write_file(LogFile& file, std::string_view chunk) {
  file.write(chunk);
  if (first_file_error_.empty() && !file.first_error().empty()) say_first_loss(file.first_error());
  if (!file.rotation_error().empty() && !std::exchange(said_rotation_error_, true)) {
    say(Level::warning, concat(file.rotation_error(), "; it grows on instead (said once)"));
  }
}

void Output::Impl::say_first_loss(const std::string& error) {
  if (!first_file_error_.empty()) return;
  first_file_error_ = error;
  say(Level::warning, concat(error, "; the job goes on without what cannot be written (said once)"));
}

bool Output::Impl::drain_stream(WorkerStream& stream) {
  if (!stream.pipe) return true;
  if (stream.lane != nullptr && !stream.file && !stream.duplicate &&
      stream.lane->console->queued() > options_.queue_high * drain_factor) {
    return false;  // its bytes are safe in the pipe until the console has room
  }
  // Only what is there now: a grandchild that goes on writing must not keep us here.
  const std::size_t there = unread_in(stream);
  std::size_t total = 0;
  for (bool more = true; more;) {
    more = total < there;
    std::size_t count = 0;
    const ReadResult result = read_once(stream, count);
    if (result == ReadResult::end) at_end(stream);
    if (result != ReadResult::data) return true;
    total += count;
  }
  return true;
}

void Output::Impl::drain_worker(const Worker& worker) {
  for (const auto& stream : worker.streams) {
    if (!stream) continue;
    drain_stream(*stream);
    if (stream->pipe) expect_quiet(*stream);
  }
}

void Output::Impl::drain(int local_rank) {
  const Worker* worker = find(local_rank);
  if (worker == nullptr) return;
  for (const auto& stream : worker->streams) {
    if (stream) ended(*stream);
  }
  drain_worker(*worker);
}

void Output::Impl::ended(WorkerStream& stream) {
  stream.has_ended = true;
  if (std::exchange(stream.silent, false)) pipes_.resume(stream.pipe.get(), &stream);
}

void Output::Impl::drain_all() {
  for (const Worker& worker : workers_) drain_worker(worker);
}

void Output::Impl::close_stream(WorkerStream& stream) {
  if (!stream.pipe) return;
  pipes_.remove(stream.pipe.get(), &stream);
  stream.pipe.reset();
  if (stream.duplicate) copy_matching(stream, {}, true);
  if (stream.lane != nullptr && stream.lane->console->gone()) {
    stream.lane->console->count_lost(stream.lines.held());
  } else if (stream.lane != nullptr) {
    Console& console = *stream.lane->console;
    const std::string_view prefix = stamped(stream);
    stream.lines.finish([&](const Piece& piece) { add_to_console(stream, prefix, piece); });
    console.flush_soon();
  }
  if (stream.file) earlier_losses_ += stream.file->lost_bytes();
  stream.file.reset();  // its descriptor is wanted for the next attempt
  held_ -= std::exchange(stream.held, 0);
  --open_streams_;
  check_waiters();
}

void Output::Impl::give_up(WorkerStream& stream) {
  if (!stream.pipe) return;
  if (stream.lane != nullptr && !stream.pty) stream.lane->console->count_lost(unread_in(stream));
  char unread[4096];
  ssize_t size = 0;
  for (std::size_t total = 0; stream.pty && total < PseudoTerminal::capacity; total += static_cast<std::size_t>(size)) {
    size = ::read(stream.pipe.get(), unread, sizeof unread);
    if (size <= 0) break;
    if (stream.lane != nullptr) stream.lane->console->count_lost(static_cast<std::size_t>(size));
  }
  close_stream(stream);
}

/// While workers run on: what they write now is for nobody.
void Output::Impl::say_if_reader_left() {
  const Console& console = *lanes_[0]->console;
  if (said_reader_left_ || !console.reader_left() || console.is_terminal()) return;
  if (open_streams_ == 0 || !waiters_.empty()) return;
  said_reader_left_ = true;
  say(Level::notice, "nobody reads standard output any more; the job goes on, and Ctrl-C ends it");
}

void Output::Impl::console_has_room() {
  say_if_reader_left();
  for (Lane& lane : lane_storage_) {
    if (!lane.console || lane.console->crowded()) continue;
    for (const auto& stream : std::exchange(lane.held_back, {})) {
      stream->held_back = false;
      stream->silent = false;
      if (stream->pipe) pipes_.resume(stream->pipe.get(), stream.get());
    }
  }
  check_waiters();
}

void Output::Impl::console_line(std::string_view text, StreamId id) {
  Console& console = *lanes_[id == StreamId::out ? 0 : 1]->console;
  console.add_text(text);
  lines_shown_ += static_cast<std::uint64_t>(std::count(text.begin(), text.end(), '\n'));
  console.flush();
}

// A prompt has no newline, and a person waits in front of it: on a terminal an unfinished line is shown after a short
// silence. Elsewhere nobody is waiting, and no timer is ever set.

void Output::Impl::expect_quiet(WorkerStream& stream) {
  if (stream.lane == nullptr || !stream.lane->console->is_terminal() || !stream.lines.holds_partial()) return;
  if (stream.lines.continues() && !stream.lane->console->gone()) {
    // Somebody types behind a question that stands there already, and readline echoes through us: each key at once.
    const std::string_view prefix = stamped(stream);
    stream.lines.show_partial([&](const Piece& piece) { add_to_console(stream, prefix, piece); });
    return stream.lane->console->flush_soon();
  }
  stream.quiet_at = Clock::now() + options_.quiet;
  if (!stream.in_quiet_list) {
    stream.in_quiet_list = true;
    quiet_list_.push_back(stream.shared_from_this());
  }
  if (!quiet_timer_armed_) arm_quiet_timer(stream.quiet_at);
}

void Output::Impl::arm_quiet_timer(Deadline at) {
  quiet_timer_armed_ = true;
  quiet_timer_.expires_at(at);
  quiet_timer_.async_wait([this, self = self_](const boost::system::error_code& failed) {
    const auto alive = self.lock();
    if (failed || !alive || shut_down_) return;
    quiet_timer_armed_ = false;
    show_quiet_lines();
  });
}

void Output::Impl::show_quiet_lines() {
  const Deadline now = Clock::now();
  std::optional<Deadline> next;
  std::erase_if(quiet_list_, [&](const std::shared_ptr<WorkerStream>& stream) {
    const bool waits = stream->pipe && stream->lines.holds_partial();
    if (waits && stream->quiet_at > now) {
      next = next ? std::min(*next, stream->quiet_at) : stream->quiet_at;
      return false;
    }
    stream->in_quiet_list = false;
    Console& console = *stream->lane->console;
    if (waits && !console.gone()) {
      const std::string_view prefix = stamped(*stream);
      stream->lines.show_partial([&](const Piece& piece) { add_to_console(*stream, prefix, piece); });
      count_held(*stream);
    }
    return true;
  });
  for (Lane& lane : lane_storage_) {
    if (lane.console) lane.console->flush_soon();
  }
  if (next) arm_quiet_timer(*next);
}

}  // namespace ddrun::logs
