#include "ddrun/logs/rank_console.hpp"

#include <algorithm>
#include <utility>

#include "ddrun/base/text.hpp"
#include "fold.hpp"
#include "line_prefix.hpp"
#include "pseudo_terminal.hpp"
#include "rows.hpp"
#include "shared_screen.hpp"

namespace ddrun::logs {

namespace {

/// Unfinished lines of all streams together; a line that goes beyond is broken.
constexpr std::size_t max_partial_bytes = std::size_t{32} << 20U;
/// Of what '\r' rewrites.
constexpr std::size_t max_state_bytes = 4096;
/// Rows are drawn at most this often.
constexpr Milliseconds draw_interval{50};

bool ends_in_return(std::string_view text) { return !text.empty() && text.back() == '\r'; }

/// Nothing but blanks, once control sequences are left out.
bool is_blank(std::string_view text) {
  std::string plain;
  if (text.find('\033') != std::string_view::npos) text = plain = without_erasing(text);
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

}  // namespace

RankConsoleOptions::RankConsoleOptions(const LogSpec& log, bool is_terminal)
    : fold(log.labels_ranks() && (log.fold == When::always || (log.fold == When::automatic && is_terminal))),
      progress(log.progress),
      color(log.color == When::always || (log.color == When::automatic && is_terminal)),
      timestamps(log.timestamps) {
  if (progress == Progress::automatic) progress = is_terminal ? Progress::rows : Progress::last;
}

RankConsole::RankConsole(const boost::asio::any_io_executor& executor, int fd, RankConsoleOptions options)
    : options_(std::move(options)),
      console_(std::make_shared<Console>(executor, fd, options_.queue_high)),
      fold_timer_{boost::asio::steady_timer(executor)},
      idle_timer_{boost::asio::steady_timer(executor)},
      rows_timer_{boost::asio::steady_timer(executor)},
      progress_timer_{boost::asio::steady_timer(executor)} {
  if (options_.fold) {
    fold_ = std::make_unique<Fold>([this](const std::vector<int>& sources, std::string_view lines, Deadline at) {
      show_folded(sources, lines, at);
    });
    if (!options_.knows_ranks) (void)fold_->open();  // writes nothing, so that each line waits for ranks to come
  }
  if (options_.progress != Progress::rows) return;
  if (!console_->can_erase()) {
    options_.progress = Progress::last;
    return;
  }
  rows_ = std::make_unique<Rows>();
  console_->on_flush([this] { draw_rows(); });
  if (options_.input_rank) rows_->set_input(static_cast<std::uint64_t>(*options_.input_rank) * 2);
}

RankConsole::~RankConsole() {
  console_->on_flush(nullptr);
  console_->on_drained(nullptr);
}

void RankConsole::arm(Timer& timer, Deadline at, void (RankConsole::*then)()) {
  if (std::exchange(timer.armed, true)) return;
  timer.timer.expires_at(at);
  timer.timer.async_wait([this, &timer, then, alive = std::weak_ptr<bool>(alive_)](const auto& failed) {
    if (failed || alive.expired()) return;
    timer.armed = false;
    (this->*then)();
  });
}

// ---- streams

void RankConsole::open_stream(RankStream& stream) {
  stream.row = static_cast<std::uint64_t>(stream.rank) * 2 + (stream.is_error ? 1 : 0);
  if (options_.color && stream.labelled && !stream.prefix.empty()) {
    stream.prefix = colored_label(stream.rank, stream.prefix);
  }
  if (!fold_ || !stream.labelled) return;
  stream.source = fold_->open();
  folded_sources_.clear();  // the number may have been another's
  sources_[stream.source] = {stream.rank, stream.prefix, stream.host, &stream};
}

void RankConsole::feed(RankStream& stream, std::string_view chunk) {
  if (console_->gone()) return console_->count_lost(chunk.size());
  if (stream.prompts) check_prompt(stream);
  const bool plain = !fold_ && options_.progress == Progress::all;
  const Deadline now = plain && !options_.timestamps ? Deadline() : Clock::now();
  const std::string_view prefix = stamped(stream.prefix, now, stamped_prefix_);
  if (plain) {
    stream.lines.feed(chunk, [&](const Piece& piece) { show_piece(stream, prefix, piece); });
  } else {
    const bool folds = stream.source >= 0 && !stream.moves_cursor && !fold_->passes(stream.source, now);
    stream.lines.feed(chunk, [&](const Piece& piece) { add_piece(stream, prefix, piece, folds, now); });
    take_unfinished_state(stream);
    if (folds) settle(stream, now);
  }
  limit_partial_bytes(stream);
  if (console_->is_terminal() && stream.lines.has_partial()) await_idle(stream);
  flush();
}

void RankConsole::add(RankStream& stream, const Piece& piece) {
  if (console_->gone()) return console_->count_lost(piece.text.size());
  const Deadline now = Clock::now();
  const bool folds = stream.source >= 0 && !stream.moves_cursor && !fold_->passes(stream.source, now);
  add_piece(stream, stamped(stream.prefix, now, stamped_prefix_), piece, folds, now);
  if (folds) settle(stream, now);
}

void RankConsole::add_piece(RankStream& stream, std::string_view prefix, const Piece& piece, bool folds, Deadline now) {
  const bool direct = takes_cursor(stream, piece.text);
  if (options_.progress != Progress::all && !direct && take_state(stream, piece)) return;
  const bool whole = !direct && !piece.continues && piece.end != PieceEnd::open &&
                     piece.text.size() <= Fold::max_source_bytes && !ends_in_return(piece.text) &&
                     !(piece.end == PieceEnd::cut && is_blank(piece.text));
  if (!folds || !whole) return show_piece(stream, prefix, piece);
  fold_->add(stream.source, piece.text, now);
  if (piece.end == PieceEnd::cut) fold_->add(stream.source, "\n", now);
}

/// Whether its output is drawn where the cursor is.
bool RankConsole::takes_cursor(RankStream& stream, std::string_view text) {
  if (rows_ && !stream.moves_cursor && moves_cursor(text)) {
    clear_state(stream);
    stream.moves_cursor = true;
  }
  return stream.moves_cursor;
}

void RankConsole::settle(const RankStream& stream, Deadline now) {
  fold_->settle(stream.source, now);
  if (!fold_timer_.armed) await_fold_deadline();
}

void RankConsole::await_fold_deadline() {
  if (const auto at = fold_->deadline()) arm(fold_timer_, *at, &RankConsole::on_fold_deadline);
}

void RankConsole::on_fold_deadline() {
  fold_->expire(Clock::now());
  await_fold_deadline();
  flush();
}

void RankConsole::show_piece(RankStream& stream, std::string_view prefix, const Piece& piece) {
  if (stream.source >= 0) fold_->release(stream.source);
  if (piece.end == PieceEnd::cut || piece.text.ends_with('\n')) ++lines_shown_;
  if (rows_) erase_rows();
  console_->add(&stream, prefix, piece);
}

void RankConsole::show_folded(const std::vector<int>& sources, std::string_view lines, Deadline at) {
  if (console_->gone()) return console_->count_lost(lines.size() * sources.size());
  if (sources != folded_sources_) {
    folded_sources_ = sources;
    const Source& first = sources_.at(sources.front());
    std::vector<int> ranks;
    bool one_host = true;
    for (const int source : sources) {
      const Source& from = sources_.at(source);
      ranks.push_back(from.rank);
      one_host = one_host && from.host == first.host;
    }
    // What the writer before has left switched on must end; a rank alone goes on where it was.
    if (sources.size() == 1) folded_writer_ = first.stream;
    else folded_writer_ = folded_writer_ == &writers_[0] ? &writers_[1] : &writers_[0];
    folded_prefix_ = sources.size() == 1 ? first.prefix : folded_label(ranks, one_host ? first.host : std::string());
  }
  if (rows_) erase_rows();
  std::string scratch;
  const std::string_view prefix = stamped(folded_prefix_, at, scratch);
  while (!lines.empty()) {
    const std::size_t size = lines.find('\n') + 1;
    console_->add(folded_writer_, prefix, Piece{lines.substr(0, size)});
    lines.remove_prefix(size);
    ++lines_shown_;
  }
}

void RankConsole::close_stream(RankStream& stream) {
  if (stream.prompts) check_prompt(stream);
  if (stream.prompts) prompt_ = nullptr;
  const Deadline now = Clock::now();
  if (console_->gone()) {
    console_->count_lost(stream.lines.partial_bytes());
  } else if (stream.rewrites && !stream.moves_cursor && stream.lines.partial_bytes() < max_state_bytes) {
    take_unfinished_state(stream);
    show_state(stream);
  } else {
    const bool folds = stream.source >= 0 && !stream.moves_cursor;
    const std::string_view prefix = stamped(stream.prefix, now, stamped_prefix_);
    stream.lines.finish([&](const Piece& piece) { add_piece(stream, prefix, piece, folds, now); });
  }
  stream.lines.begin_line();
  update_partial_bytes(stream);
  clear_state(stream);
  std::erase(streams_, &stream);
  stream.rewrites = stream.awaits_idle = false;
  if (stream.source >= 0) fold_->close(stream.source, now);
  stream.source = -1;
  flush();
}

// ---- unfinished lines

bool RankConsole::take_state(RankStream& stream, const Piece& piece) {
  if (ends_in_return(piece.text) && piece.end == PieceEnd::terminated && !piece.continues) {
    if (!std::exchange(stream.rewrites, true) && !stream.awaits_idle) streams_.push_back(&stream);
    if (piece.text.size() > 1) set_state(stream, piece.text);
    return true;
  }
  if (!stream.state.empty()) clear_state(stream);
  return false;
}

/// A progress bar that writes '\r' before its text and not behind it.
void RankConsole::take_unfinished_state(RankStream& stream) {
  const std::string_view text = stream.lines.partial();
  if (!stream.rewrites || text.find_first_not_of(' ') == std::string_view::npos || takes_cursor(stream, text)) return;
  set_state(stream, text);
}

void RankConsole::set_state(RankStream& stream, std::string_view text) {
  if (ends_in_return(text)) text.remove_suffix(1);
  text = text.substr(0, max_state_bytes);
  if (stream.state == text) return;
  stream.state = text;
  stream.state_unshown = true;
  if (!rows_) return arm(progress_timer_, Clock::now() + options_.state_interval, &RankConsole::on_progress);
  if (is_blank(text)) rows_->remove(stream.row);
  else rows_->set(stream.row, stream.prefix, without_erasing(text));
}

void RankConsole::clear_state(RankStream& stream) {
  stream.state.clear();
  stream.state_unshown = false;
  if (rows_) rows_->remove(stream.row);
}

/// As a line, if it has not been shown as one.
void RankConsole::show_state(RankStream& stream) {
  if (!std::exchange(stream.state_unshown, false) || is_blank(stream.state)) return;
  const std::string line = without_erasing(stream.state) + '\n';
  show_piece(stream, stamped(stream.prefix, Clock::now(), stamped_prefix_), Piece{line});
}

void RankConsole::on_progress() {
  for (RankStream* stream : streams_) {
    show_state(*stream);
  }
  flush();
}

void RankConsole::update_partial_bytes(RankStream& stream) {
  const std::size_t now = stream.lines.partial_bytes();
  partial_bytes_ += now - stream.partial_bytes;
  stream.partial_bytes = now;
}

void RankConsole::limit_partial_bytes(RankStream& stream) {
  update_partial_bytes(stream);
  if (partial_bytes_ <= max_partial_bytes || stream.partial_bytes == 0) return;
  const std::string_view prefix = stamped(stream.prefix, Clock::now(), stamped_prefix_);
  stream.lines.finish([&](const Piece& piece) { show_piece(stream, prefix, piece); });
  update_partial_bytes(stream);
}

// A prompt has no newline: on a terminal an unfinished line is shown when its stream has been idle for a while. On
// other consoles no timer is set.

void RankConsole::await_idle(RankStream& stream) {
  if (options_.progress != Progress::all && stream.rewrites && !stream.moves_cursor) return;  // its state is shown
  const bool row = rows_ && !stream.moves_cursor;
  // The user types behind a prompt that is shown already: readline's echo of each key is shown at once.
  if (row ? !stream.state.empty() : stream.lines.continues()) return show_unfinished(stream);
  stream.idle_at = Clock::now() + options_.idle_flush_delay;
  if (!std::exchange(stream.awaits_idle, true) && !stream.rewrites) streams_.push_back(&stream);
  arm(idle_timer_, stream.idle_at, &RankConsole::on_idle);
}

void RankConsole::show_unfinished(RankStream& stream) {
  if (console_->gone()) return;
  if (stream.source >= 0) fold_->release(stream.source);
  if (rows_ && !stream.moves_cursor) {
    set_state(stream, stream.lines.partial());
  } else {
    const std::string_view prefix = stamped(stream.prefix, Clock::now(), stamped_prefix_);
    stream.lines.flush_partial([&](const Piece& piece) { show_piece(stream, prefix, piece); });
    update_partial_bytes(stream);
  }
  if (options_.input_rank == stream.rank && !stream.prompts && options_.input_awaited && options_.input_awaited()) {
    stream.prompts = true;
    prompt_ = &stream;
  }
}

void RankConsole::on_idle() {
  const Deadline now = Clock::now();
  std::optional<Deadline> next;
  for (RankStream* stream : streams_) {
    if (!stream->awaits_idle) continue;
    if (stream->lines.has_partial() && stream->idle_at > now) {
      next = next ? std::min(*next, stream->idle_at) : stream->idle_at;
      continue;
    }
    stream->awaits_idle = false;
    if (stream->lines.has_partial()) show_unfinished(*stream);
  }
  std::erase_if(streams_, [](const RankStream* stream) { return !stream->awaits_idle && !stream->rewrites; });
  if (next) arm(idle_timer_, *next, &RankConsole::on_idle);
  flush();
}

/// If the prompt was answered, the terminal has ended its line.
void RankConsole::check_prompt(RankStream& stream) {
  if (options_.input_awaited()) return;
  stream.prompts = false;
  prompt_ = nullptr;
  if (rows_ && rows_->is_drawn()) console_->add_drawing(rows_->erase_answered(), true);
  else console_->line_was_ended();
  clear_state(stream);
  stream.lines.begin_line();
  update_partial_bytes(stream);
}

// ---- rows

void RankConsole::erase_rows() {
  if (prompt_ != nullptr && rows_->is_drawn()) check_prompt(*prompt_);
  if (rows_->is_drawn()) console_->add_drawing(rows_->erase(), true);
}

void RankConsole::draw_rows() {
  if (!rows_->is_dirty() || console_->has_back_pressure()) return;
  const Deadline at = drawn_at_ + draw_interval;
  if (rows_->is_drawn() && at > Clock::now()) return arm(rows_timer_, at, &RankConsole::flush);
  if (prompt_ != nullptr) check_prompt(*prompt_);
  drawn_at_ = Clock::now();
  const ScreenSize size = screen_size(console_->descriptor());
  rows_->set_size(size.columns, size.rows / 3);
  if (const std::string bytes = rows_->draw(); !bytes.empty()) console_->add_drawing(bytes, rows_->empty());
}

// ---- all

void RankConsole::add_text(std::string_view text) {
  release();
  if (rows_) erase_rows();
  console_->add_text(text);
  lines_shown_ += static_cast<std::uint64_t>(std::count(text.begin(), text.end(), '\n'));
}

void RankConsole::add_unlabelled(const void* writer, std::string_view prefix, const Piece& piece) {
  release();
  if (rows_) erase_rows();
  console_->add(writer, prefix, piece);
}

void RankConsole::flush() {
  // Behind lines of this turn of the loop, if there are any.
  if (rows_ && console_->queued() == 0) draw_rows();
  console_->schedule_flush();
}

void RankConsole::release() {
  if (fold_) fold_->release_all();
}

void RankConsole::close() {
  release();
  if (rows_) erase_rows();
  alive_.reset();
  console_->close();
}

/// The prefix behind the time, in `scratch`, if times are shown.
std::string_view RankConsole::stamped(std::string_view prefix, Deadline at, std::string& scratch) const {
  if (!options_.timestamps) return prefix;
  const auto ago = std::chrono::duration_cast<std::chrono::system_clock::duration>(Clock::now() - at);
  scratch = time_stamp(std::chrono::system_clock::now() - ago);
  scratch += prefix;
  return scratch;
}

}  // namespace ddrun::logs
