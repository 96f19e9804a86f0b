#include "ddrun/logs/rank_console.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <tuple>
#include <utility>

#include "ddrun/base/text.hpp"
#include "ddrun/logs/piece_frames.hpp"
#include "fold.hpp"
#include "line_prefix.hpp"
#include "pseudo_terminal.hpp"
#include "screen.hpp"
#include "stream_text.hpp"

namespace ddrun::logs {

namespace {

/// Unfinished lines of all streams together; a line that goes beyond is broken.
constexpr std::size_t max_unfinished_bytes = std::size_t{32} << 20U;
/// Rows are drawn at most this often.
constexpr Milliseconds draw_interval{50};
/// With so many queued bytes flush() writes at once.
constexpr std::size_t flush_size = std::size_t{64} << 10U;
constexpr std::uint64_t more_key = UINT64_MAX;

bool ends_in_return(std::string_view text) { return !text.empty() && text.back() == '\r'; }

/// Whether the terminal breaks the lines on its screen anew when its width changes.
bool terminal_reflows() {
  return std::ranges::any_of(
      std::initializer_list<const char*>{"TMUX", "VTE_VERSION", "KITTY_WINDOW_ID", "WT_SESSION", "KONSOLE_VERSION",
                                         "TERM_PROGRAM", "ALACRITTY_WINDOW_ID", "WEZTERM_PANE"},
      [](const char* name) { return std::getenv(name) != nullptr; });
}

}  // namespace

RankConsoleOptions::RankConsoleOptions(const LogSpec& log, bool is_terminal)
    : fold(!log.frames && log.labels_ranks() &&
           (log.fold == When::always || (log.fold == When::automatic && is_terminal))),
      progress(log.progress),
      color(!log.frames && (log.color == When::always || (log.color == When::automatic && is_terminal))),
      timestamps(log.timestamps && !log.frames),
      frames(log.frames.has_value()) {
  if (progress == Progress::automatic) progress = is_terminal ? Progress::rows : Progress::last;
}

/// What stands on the terminal, and the streams that it shows.
struct RankConsole::Display {
  StreamText::Options text{};
  std::vector<RankStream*> live{};  ///< streams that have rows, or wait for a deadline
  Screen screen{};
  std::size_t label_width = 0;  ///< that all ranks leave
  bool has_changed = false;     ///< since the rows were drawn
  bool flush_posted = false;
  bool suspended = false;
  bool reflows = false;
  std::uint64_t changes = 0;
  Deadline drawn_at{};
  const void* open_line = nullptr;  ///< the writer whose unfinished line the cursor stands in; without rows only
  bool returned = false;            ///< and it ended in '\r'

  /// The rows that `live` should have; those of the input rank are the lowest.
  [[nodiscard]] Screen layout(const ScreenSize& size) const;
};

RankConsole::RankConsole(const boost::asio::any_io_executor& executor, int fd, RankConsoleOptions options)
    : options_(std::move(options)),
      console_(std::make_shared<Console>(executor, fd, options_.queue_high)),
      display_(std::make_unique<Display>()),
      fold_timer_{boost::asio::steady_timer(executor)},
      stream_timer_{boost::asio::steady_timer(executor)},
      rows_timer_{boost::asio::steady_timer(executor)} {
  if (options_.progress == Progress::rows && !console_->can_erase()) options_.progress = Progress::last;
  display_->text = {options_.progress, console_->is_terminal(), options_.state_interval, options_.idle_flush_delay};
  display_->reflows = terminal_reflows();
}

RankConsole::~RankConsole() { console_->on_drained(nullptr); }

/// A timer is never set to a later time.
void RankConsole::arm(Timer& timer, std::optional<Deadline> at, void (RankConsole::*then)()) {
  if (!at || (timer.at && *timer.at <= *at)) return;
  timer.at = at;
  timer.timer.expires_at(*at);
  timer.timer.async_wait([this, &timer, then, alive = std::weak_ptr<bool>(alive_)](const auto& cancelled) {
    if (cancelled || alive.expired()) return;
    timer.at.reset();
    (this->*then)();
  });
}

// ---- streams

Fold& RankConsole::fold_of(std::string_view role) {
  for (const auto& [known, fold] : folds_) {
    if (known == role) return *fold;
  }
  std::unique_ptr<Fold>& fold = folds_.emplace_back(std::string(role), nullptr).second;
  fold = std::make_unique<Fold>([this, &fold](const std::vector<int>& sources, std::string_view lines, Deadline at) {
    show_folded(*fold, sources, lines, at);
  });
  if (!options_.knows_ranks) (void)fold->open();  // writes nothing, so that each line waits for ranks to come
  return *fold;
}

ScreenSize RankConsole::worker_screen(const RankStream& stream) {
  std::size_t width = screen_width(stamped(stream.prefix, {}));
  if (options_.fold) {
    // All ranks have the same width, or lines of this width would not be equal.
    const std::string widest =
        concat('[', stream.scope, stream.scope.empty() ? "" : ":", stream.highest_rank, '-', stream.highest_rank, "] ");
    width = std::max(width, screen_width(stamped(widest, {})));
    display_->label_width = std::max(display_->label_width, width);
  }
  return screen_size(console_->descriptor()).without_prefix(width);
}

/// A worker that is there again, as after a restart, keeps its key.
void RankConsole::announce(RankStream& stream) {
  const auto key = options_.first_key + static_cast<std::uint32_t>(keys_.size());
  const auto [known, is_new] = keys_.try_emplace({stream.rank, stream.prefix}, key);
  stream.key = known->second;
  if (is_new) console_->add(encode(WorkerLabel{key, stream.rank, stream.labelled, stream.prefix}));
}

void RankConsole::open_stream(RankStream& stream) {
  if (options_.frames) announce(stream);
  if (options_.color && stream.labelled && !stream.prefix.empty()) {
    stream.prefix = colored_label(stream.position, stream.prefix);
  }
  stream.text = std::make_shared<StreamText>(display_->text);
  const ScreenSize size = worker_screen(stream);
  stream.text->set_size(size.columns, size.rows);
  if (!options_.fold || !stream.labelled) return;
  stream.fold = &fold_of(stream.role);
  stream.source = stream.fold->open();
  folded_sources_.clear();  // the number may have been another's
  sources_[{stream.fold, stream.source}] = {stream.rank, stream.prefix, stream.scope};
}

bool RankConsole::folds(const RankStream& stream, Deadline now) const {
  return stream.fold != nullptr && !stream.fold->passes(stream.source, now);
}

void RankConsole::feed(RankStream& stream, std::string_view chunk) {
  if (console_->gone()) return console_->count_lost(chunk.size());
  const Deadline now = needs_time() ? Clock::now() : Deadline();
  if (stream.source < 0 && stream.text->passes(chunk)) {
    const std::string_view prefix = stamped(stream.prefix, now);
    stream.text->feed_lines(chunk, [&](const Piece& piece) {
      if (piece.text.ends_with('\n')) ++lines_shown_;
      if (options_.frames) add_frames(stream.key, stream.is_error, piece);
      else console_->add(prefix, piece);
    });
  } else {
    stream.text->feed(chunk, now, [&](const Piece& piece) { take_piece(stream, piece, now); });
  }
  end_feed(stream, now);
}

bool RankConsole::needs_time() const {
  return options_.fold || options_.timestamps || options_.progress != Progress::all || console_->is_terminal();
}

void RankConsole::feed(RankStream& stream, const Piece& piece) {
  if (console_->gone()) return console_->count_lost(piece.text.size());
  if (stream.source < 0 && !options_.timestamps && stream.text->passes(piece)) {
    if (piece.text.ends_with('\n')) ++lines_shown_;
    console_->add(stream.prefix, piece);
    return flush();
  }
  const Deadline now = needs_time() ? Clock::now() : Deadline();
  stream.text->feed(piece, now, [&](const Piece& shown) { take_piece(stream, shown, now); });
  end_feed(stream, now);
}

void RankConsole::end_feed(RankStream& stream, Deadline now) {
  if (unfinished_bytes_ > max_unfinished_bytes && stream.text->unfinished_bytes() > 0) {
    stream.text->break_line(now, [&](const Piece& piece) { show_piece(stream, piece, now); });
  }
  on_change(stream, now);
  flush();
}

void RankConsole::on_change(RankStream& stream, Deadline now) {
  count_unfinished(stream);
  if (folds(stream, now)) {
    stream.fold->settle(stream.source, now);
    arm(fold_timer_, stream.fold->deadline(), &RankConsole::on_fold_deadline);
  }
  const auto deadline = stream.text->deadline();
  const bool is_live = deadline || stream.text->block() != nullptr;
  if (is_live || stream.is_live) {
    stream.changed = ++display_->changes;
    display_->has_changed = true;
  }
  const bool was_live = std::exchange(stream.is_live, is_live);
  if (is_live && !was_live) display_->live.push_back(&stream);
  if (was_live && !is_live) std::erase(display_->live, &stream);
  arm(stream_timer_, deadline, &RankConsole::on_stream_deadline);
}

void RankConsole::count_unfinished(RankStream& stream) {
  const std::size_t now = stream.text->unfinished_bytes();
  unfinished_bytes_ += now - std::exchange(stream.unfinished_bytes, now);
}

void RankConsole::take_piece(RankStream& stream, const Piece& piece, Deadline now) {
  const bool whole = !piece.continues && piece.end != PieceEnd::open && !ends_in_return(piece.text) &&
                     piece.text.size() <= Fold::max_source_bytes && !(piece.end == PieceEnd::cut && piece.text.empty());
  if (!whole || !folds(stream, now)) return show_piece(stream, piece, now);
  stream.fold->add(stream.source, piece.text, now);
  if (piece.end == PieceEnd::cut) stream.fold->add(stream.source, "\n", now);
}

void RankConsole::show_piece(RankStream& stream, const Piece& piece, Deadline now) {
  if (stream.fold != nullptr) stream.fold->release(stream.source);
  if (piece.end == PieceEnd::cut || piece.text.ends_with('\n')) ++lines_shown_;
  if (options_.frames) add_frames(stream.key, stream.is_error, piece);
  else add_piece(&stream, stamped(stream.prefix, now), piece);
}

void RankConsole::add_frames(std::uint32_t key, bool is_error, Piece piece) {
  if (console_->gone()) return console_->count_lost(piece.text.size());
  while (true) {
    Piece part{piece.text.substr(0, max_piece_bytes), piece.continues, piece.end};
    piece.text.remove_prefix(part.text.size());
    piece.continues = true;
    if (!piece.text.empty()) part.end = PieceEnd::open;
    console_->add(piece_header({key, is_error, part}), Piece{part.text});
    if (piece.text.empty()) return;
  }
}

void RankConsole::on_stream_deadline() {
  const Deadline now = Clock::now();
  std::optional<Deadline> next;
  const std::vector<RankStream*> live = display_->live;
  for (RankStream* stream : live) {
    auto at = stream->text->deadline();
    if (at && *at <= now) {
      stream->text->expire(now, [&](const Piece& piece) { take_piece(*stream, piece, now); });
      on_change(*stream, now);
      at = stream->text->deadline();
    }
    if (at) next = next ? std::min(*next, *at) : at;
  }
  arm(stream_timer_, next, &RankConsole::on_stream_deadline);
  flush();
}

void RankConsole::close_stream(RankStream& stream) {
  const Deadline now = Clock::now();
  stream.text->finish(now, [&](const Piece& piece) { take_piece(stream, piece, now); });
  count_unfinished(stream);
  if (std::exchange(stream.is_live, false)) {
    std::erase(display_->live, &stream);
    display_->has_changed = true;
  }
  if (display_->open_line == &stream) display_->open_line = nullptr;
  if (stream.fold != nullptr) stream.fold->close(stream.source, now);
  stream.source = -1;
  stream.text.reset();
  flush();
}

// ---- equal lines

void RankConsole::on_fold_deadline() {
  for (const auto& [role, fold] : folds_) {
    fold->expire(Clock::now());
    arm(fold_timer_, fold->deadline(), &RankConsole::on_fold_deadline);
  }
  flush();
}

std::string RankConsole::label_of(const Fold& fold, std::span<const int> sources) const {
  const Source& first = sources_.at({&fold, sources.front()});
  if (sources.size() == 1) return first.prefix;
  std::vector<int> ranks;
  bool one_scope = true;
  for (const int source : sources) {
    const Source& from = sources_.at({&fold, source});
    ranks.push_back(from.rank);
    one_scope = one_scope && from.scope == first.scope;
  }
  return folded_label(ranks, one_scope ? first.scope : std::string());
}

void RankConsole::show_folded(const Fold& fold, const std::vector<int>& sources, std::string_view lines, Deadline at) {
  if (console_->gone()) return console_->count_lost(lines.size() * sources.size());
  if (sources != folded_sources_ || &fold != last_fold_) {
    folded_sources_ = sources;
    last_fold_ = &fold;
    folded_prefix_ = label_of(fold, sources);
  }
  const bool may_break = sources.size() > 1 && console_->is_terminal();
  const std::size_t columns = may_break ? screen_size(console_->descriptor()).columns : 0;
  while (!lines.empty()) {
    const Piece line{lines.substr(0, lines.find('\n') + 1)};
    lines.remove_prefix(line.text.size());
    ++lines_shown_;
    const std::size_t size = line.text.size() - 1;
    const bool fits = size + folded_prefix_.size() <= columns || size + display_->label_width > columns;
    if (!may_break || fits) {
      add_piece(nullptr, stamped(folded_prefix_, at), line);
      continue;
    }
    const auto rank_of = [&](int source) { return sources_.at({&fold, source}).rank; };
    // A label of ranks one after the other is as wide as workers know.
    for (auto first = sources.begin(); first != sources.end();) {
      auto last = std::next(first);
      while (last != sources.end() && rank_of(*last) == rank_of(*std::prev(last)) + 1) ++last;
      add_piece(nullptr, stamped(label_of(fold, {first, last}), at), line);
      first = last;
    }
  }
}

// ---- the lower end of a terminal

/// Below finished lines. `writer` is an address that stands for a stream; null for whole lines.
void RankConsole::add_piece(const void* writer, std::string_view prefix, const Piece& piece) {
  if (console_->gone()) return console_->count_lost(piece.text.size());
  erase_rows();
  Display& display = *display_;
  const bool goes_on = display.open_line != nullptr && display.open_line == writer;
  if (display.open_line != nullptr && !goes_on) {
    if (!display.returned) console_->add("\n");
    else if (console_->can_erase()) console_->add("\033[K");  // of a progress bar
    display.open_line = nullptr;
  }
  const bool continues = piece.continues && goes_on;
  // The line was ended for another writer, and no more of it has come.
  if (console_->is_terminal() && piece.continues && !continues && piece.text.empty()) return;
  console_->add(continues ? std::string_view() : prefix, piece);
  if (!console_->is_terminal()) return;
  display.returned = ends_in_return(piece.text) && piece.end != PieceEnd::cut;
  display.open_line = display.returned || piece.end == PieceEnd::open ? writer : nullptr;
}

void RankConsole::erase_rows() {
  if (display_->screen.rows.empty() || console_->gone()) return;
  Screen wanted{.columns = screen_size(console_->descriptor()).columns, .hides_cursor = display_->screen.hides_cursor};
  console_->add(draw(display_->screen, wanted, display_->reflows));
  display_->screen = std::move(wanted);
  display_->has_changed = true;
}

void RankConsole::draw_rows() {
  Display& display = *display_;
  const bool draws = display.has_changed && options_.progress == Progress::rows && !display.suspended;
  if (!draws || console_->has_back_pressure() || console_->gone()) return;
  const Deadline at = display.drawn_at + draw_interval;
  const Deadline now = Clock::now();
  if (!display.screen.rows.empty() && at > now) return arm(rows_timer_, at, &RankConsole::flush);
  display.drawn_at = now;
  display.has_changed = false;
  const Screen wanted = display.layout(screen_size(console_->descriptor()));
  const std::string bytes = draw(display.screen, wanted, display.reflows);
  if (!bytes.empty() && display.screen.rows.empty() && std::exchange(display.open_line, nullptr) != nullptr) {
    console_->add("\n");
  }
  console_->add(bytes);
  display.screen = wanted;
}

Screen RankConsole::Display::layout(const ScreenSize& size) const {
  std::vector<RankStream*> streams;
  for (RankStream* stream : live) {
    if (stream->text->block() != nullptr && stream->text->block()->shown_size() > 0) streams.push_back(stream);
  }
  const auto is_input = [&](const RankStream* stream) { return stream->is_input && !stream->is_error; };
  std::ranges::sort(streams, {}, [&](const RankStream* stream) {
    return std::tuple(is_input(stream), stream->position, stream->is_error);
  });
  std::vector<Demand> demands;
  for (const RankStream* stream : streams) {
    demands.push_back({stream->changed, stream->text->block()->shown_size(), is_input(stream)});
  }
  const std::vector<std::size_t> rows = divide_rows(demands, std::max<std::size_t>(size.rows / 3, 1));
  const auto left_out = static_cast<std::size_t>(std::ranges::count(rows, 0U));

  Screen wanted{.columns = size.columns};
  const auto add_more = [&] { wanted.rows.push_back({more_key, concat("… ", left_out, " more"), 8}); };
  for (std::size_t i = 0; i < streams.size(); ++i) {
    const RankStream& stream = *streams[i];
    const Block& block = *stream.text->block();
    wanted.hides_cursor = wanted.hides_cursor || block.hides_cursor();
    if (left_out > 0 && is_input(&stream)) add_more();
    const std::size_t label = std::min<std::size_t>(screen_width(stream.prefix), size.columns);
    std::uint64_t key = (static_cast<std::uint64_t>(stream.position) * 2 + (stream.is_error ? 1 : 0)) << 16U;
    for (Block::Shown& line : block.shown(rows[i], size.columns - label)) {
      wanted.rows.push_back({key++, concat(stream.prefix, line.text), label + line.width});
      if (!is_input(&stream) || !line.has_cursor) continue;
      wanted.cursor_row = wanted.rows.size() - 1;
      wanted.cursor_column = std::min<std::size_t>(label + block.cursor_column(), size.columns - 1U);
    }
  }
  if (left_out > 0 && !is_input(streams.back())) add_more();
  if (wanted.rows.empty() || wanted.cursor_column > 0) return wanted;
  // The terminal may echo a key such as "^Z".
  wanted.cursor_row = wanted.rows.size() - 1;
  const std::size_t width = wanted.rows.back().width;
  wanted.cursor_column = width + 2 < size.columns ? width : 0;
  return wanted;
}

void RankConsole::set_suspended(bool suspended) {
  display_->suspended = suspended;
  if (suspended) erase_rows();
  display_->has_changed = true;
  flush_now();
}

void RankConsole::resize() {
  for (RankStream* stream : display_->live) {
    const ScreenSize size = worker_screen(*stream);
    stream->text->set_size(size.columns, size.rows);
  }
  display_->has_changed = true;
  flush();
}

// ---- all

void RankConsole::add_text(std::string_view text) {
  if (console_->gone()) return console_->count_lost(text.size());
  if (options_.frames) {
    release();
    LineAssembler lines;
    const auto add = [this](const Piece& line) { add_frames(0, true, line); };
    lines.feed(text, add);
    lines.finish(add);
  } else {
    add_unlabelled(nullptr, {}, Piece{text});
  }
  lines_shown_ += static_cast<std::uint64_t>(std::count(text.begin(), text.end(), '\n'));
}

void RankConsole::add_unlabelled(const void* writer, std::string_view prefix, const Piece& piece) {
  release();
  add_piece(writer, prefix, piece);
}

void RankConsole::flush() {
  // Behind lines of this turn of the loop, if there are any.
  if (console_->queued() == 0) draw_rows();
  if (console_->queued() >= flush_size || console_->is_waiting()) return flush_now();
  if (console_->queued() == 0 || std::exchange(display_->flush_posted, true)) return;
  boost::asio::post(stream_timer_.timer.get_executor(), [this, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.expired()) return;
    display_->flush_posted = false;
    flush_now();
  });
}

void RankConsole::flush_now() {
  if (!console_->is_waiting()) draw_rows();
  console_->flush();
}

void RankConsole::release() {
  const Deadline now = Clock::now();
  for (RankStream* stream : std::vector<RankStream*>(display_->live)) {
    stream->text->release(now, [&](const Piece& piece) { take_piece(*stream, piece, now); });
  }
  for (const auto& [role, fold] : folds_) fold->release_all();
}

void RankConsole::close() {
  release();
  erase_rows();
  if (display_->screen.hides_cursor) console_->add(draw(display_->screen, Screen(), false));
  alive_.reset();
  console_->close();
}

bool RankConsole::ends_mid_line() const {
  if (options_.frames) return false;
  return console_->is_terminal() ? display_->open_line != nullptr : console_->ends_mid_line();
}

/// The prefix behind the time, if times are shown; valid until the next call.
std::string_view RankConsole::stamped(std::string_view prefix, Deadline at) {
  if (!options_.timestamps) return prefix;
  const auto ago = std::chrono::duration_cast<std::chrono::system_clock::duration>(Clock::now() - at);
  stamped_prefix_ = time_stamp(std::chrono::system_clock::now() - ago);
  stamped_prefix_ += prefix;
  return stamped_prefix_;
}

}  // namespace ddrun::logs
