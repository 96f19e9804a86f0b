#include "stream_text.hpp"

#include <algorithm>
#include <utility>

#include "ddrun/base/text.hpp"

namespace ddrun::logs {

namespace {

/// A block with more goes on as an unfinished line.
constexpr std::size_t max_cells = std::size_t{16} << 10U;

bool ends_in_return(std::string_view text) { return !text.empty() && text.back() == '\r'; }
bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\n") == std::string_view::npos; }

/// "\n", "\r\n" or "\r" at the end.
std::size_t line_end(std::string_view text) {
  std::size_t end = text.size();
  if (end > 0 && text[end - 1] == '\n') --end;
  if (end > 0 && text[end - 1] == '\r') --end;
  return end;
}

/// Printable ASCII, but for the end of the line.
bool is_plain(std::string_view text) {
  return std::ranges::all_of(text.substr(0, line_end(text)), [](char c) { return c >= 0x20 && c < 0x7f; });
}

/// '\r' that is not part of "\r\n".
bool rewrites(std::string_view text) {
  for (std::size_t at = text.find('\r'); at != std::string_view::npos; at = text.find('\r', at + 1)) {
    if (at + 1 == text.size() || text[at + 1] != '\n') return true;
  }
  return false;
}

bool moves_up(std::string_view text) {
  for (std::size_t at = text.find("\033["); at != std::string_view::npos; at = text.find("\033[", at + 1)) {
    const std::size_t final = text.find_first_not_of("0123456789", at + 2);
    if (final != std::string_view::npos && (text[final] == 'A' || text[final] == 'F')) return true;
  }
  return false;
}

}  // namespace

void StreamText::set_size(int columns, int rows) {
  columns_ = columns;
  rows_ = rows;
  if (block_) block_->set_size(columns, rows);
}

void StreamText::feed(std::string_view bytes, Time now, PieceSink emit) {
  while (!bytes.empty()) bytes = block_ ? feed_block(bytes, now, emit) : feed_plain(bytes, now, emit);
  if (!options_.terminal || !lines_.has_partial()) return;
  idle_at_ = now + options_.idle_delay;
  // The user types behind a prompt that is shown already.
  if (!has_rows() && lines_.continues()) expire(idle_at_, emit);
}

void StreamText::feed(const Piece& piece, Time now, PieceSink emit) {
  if (block_ || piece.end == PieceEnd::open) {
    feed(piece.text, now, emit);
    if (piece.end == PieceEnd::cut) feed("\n", now, emit);
  } else if (!lines_.has_partial() && !lines_.continues()) {
    pass(piece, now, emit);
  } else {
    lines_.end_line(piece.text, piece.end, [&](const Piece& line) { pass(line, now, emit); });
  }
}

std::string_view StreamText::feed_plain(std::string_view bytes, Time now, PieceSink emit) {
  const std::string_view rest = lines_.feed(bytes, [&](const Piece& piece) { return pass(piece, now, emit); });
  const std::string_view partial = lines_.partial();
  if (block_ || partial.empty() || partial.size() >= max_cells || lines_.continues()) return rest;
  const std::string_view added = partial.substr(partial.size() - std::min(partial.size(), bytes.size()));
  if (has_rows() ? is_plain(added) && !pen_ : options_.progress == Progress::all || !moves_up(added)) return rest;
  begin_block(partial, now, now);
  lines_.begin_line();
  settle(now, emit);
  return rest;
}

bool StreamText::pass(const Piece& piece, Time now, PieceSink emit) {
  const std::string_view text = piece.text;
  const bool is_rewritten = ends_in_return(text) && piece.end == PieceEnd::terminated;
  const bool passes_as_is = !options_.terminal || (!pen_ && is_plain(text));
  const bool may_change = has_rows() ? is_rewritten || !passes_as_is || is_blank(text)
                                     : options_.progress == Progress::last && (is_rewritten || moves_up(text));
  if (may_change && !piece.continues && text.size() < max_cells) {
    begin_block(text, now, is_rewritten || is_blank(text) ? now + settle_delay : now);
    if (piece.end == PieceEnd::cut) block_->write("\n", now);
    settle(now, emit);
    return !block_;
  }
  if (passes_as_is) return emit(piece), true;
  const std::string line = render(text);
  // A sequence behind the last line makes no line.
  if (!line.empty() || piece.end != PieceEnd::cut) emit(Piece{line, piece.continues, piece.end});
  return true;
}

std::string StreamText::render(std::string_view line) {
  Block block({});
  block.set_size(columns_, 1);
  if (pen_) block.set_pen(*pen_);
  std::string text;
  const std::size_t end = line_end(line);
  for (std::size_t at = 0; at < end; at += max_cells) {
    block.write(line.substr(at, std::min(max_cells, end - at)), {});
    text += block.take_text();
  }
  set_pen(block.pen());
  return text.append(line.substr(end));
}

void StreamText::set_pen(const Pen& pen) {
  const bool goes_on = options_.terminal && (pen.style != Style() || !pen.link.empty());
  pen_ = goes_on ? std::make_unique<Pen>(pen) : nullptr;
}

// ---- lines that can change

void StreamText::begin_block(std::string_view text, Time now, Time settled_at) {
  block_ = std::make_unique<Block>(now, !options_.terminal);
  block_->set_size(columns_, rows_);
  if (pen_) block_->set_pen(*pen_);
  mode_ = Mode::rewriting;
  settled_at_ = settled_at;
  write_block(text, now);
}

void StreamText::write_block(std::string_view text, Time now) {
  const bool was_hidden = block_->hides_cursor();
  block_->write(text, now);
  if (block_->moved_up_at() == now || block_->hides_cursor()) mode_ = Mode::moving;
  if (!was_hidden || block_->hides_cursor()) return;
  mode_ = Mode::rewriting;  // a display is over
  settled_at_ = now + settle_delay;
}

std::string_view StreamText::feed_block(std::string_view bytes, Time now, PieceSink emit) {
  std::string_view part = bytes;
  const std::size_t newline = bytes.find('\n');
  if (rewrites(bytes) || (block_->is_rewritten() && newline != std::string_view::npos)) {
    settled_at_ = now + settle_delay;
  } else if (mode_ == Mode::rewriting && now >= settled_at_ && newline != std::string_view::npos) {
    part = bytes.substr(0, newline + 1);  // nothing waits: after this line the others may pass
  }
  write_block(part, now);
  settle(now, emit);
  return bytes.substr(part.size());
}

std::optional<StreamText::Time> StreamText::front_finished_at() const {
  if (block_->cursor_line() == 0) return std::nullopt;
  if (mode_ == Mode::rewriting) return settled_at_;
  if (!block_->has_grown() && block_->reached_at() >= block_->moved_up_at()) return std::nullopt;
  return block_->reached_at() + reach_time;
}

void StreamText::settle(Time now, PieceSink emit) {
  for (std::string& line : block_->take_scrolled()) emit_line(std::move(line), emit);
  while (front_finished_at().value_or(Time::max()) <= now) {
    // Lines follow, and the cursor does not come back.
    const bool goes_on = block_->has_grown() && !block_->hides_cursor();
    if (mode_ == Mode::moving && goes_on && block_->moved_up_at() + reach_time <= now) {
      mode_ = Mode::rewriting;
      settled_at_ = now;
    }
    emit_line(block_->take_front(), emit);
  }
  const bool is_too_long = block_->cells() > max_cells;
  if (is_too_long) {
    while (block_->cursor_line() > 0) emit_line(block_->take_front(), emit);
    lines_.resume(block_->take_text());
  }
  const bool may_change = mode_ == Mode::rewriting && settled_at_ > now;
  if (!is_too_long && (may_change || !block_->is_empty())) {
    if (!std::exchange(unshown_, true)) state_at_ = now + options_.state_interval;
    return;
  }
  set_pen(is_too_long ? Pen() : block_->pen());
  end_block();
}

void StreamText::end_block() {
  block_.reset();
  mode_ = Mode::plain;
  unshown_ = false;
}

void StreamText::emit_line(std::string text, PieceSink emit) {
  text += '\n';
  emit(Piece{text});
}

void StreamText::show_state(PieceSink emit) {
  if (!std::exchange(unshown_, false)) return;
  for (Block::Shown& line : block_->shown(block_->size())) emit_line(std::move(line.text), emit);
}

std::optional<StreamText::Time> StreamText::deadline() const {
  if (!block_) return options_.terminal && lines_.has_partial() ? std::optional(idle_at_) : std::nullopt;
  auto at = front_finished_at();
  if (options_.progress == Progress::last && unshown_) at = at ? std::min(*at, state_at_) : state_at_;
  return at;
}

void StreamText::expire(Time now, PieceSink emit) {
  if (block_) {
    const bool was_unshown = unshown_;
    settle(now, emit);
    if (!block_) return;
    unshown_ = was_unshown;
    if (options_.progress == Progress::last && state_at_ <= now) show_state(emit);
  } else if (options_.terminal && lines_.has_partial() && idle_at_ <= now) {
    if (has_rows() && lines_.partial_bytes() < max_cells) {
      begin_block(lines_.partial(), now, now);
      lines_.begin_line();
      settle(now, emit);
    } else {
      lines_.flush_partial([&](const Piece& piece) { pass(piece, now, emit); });
    }
  }
}

void StreamText::release(Time now, PieceSink emit) {
  if (!block_ || mode_ != Mode::rewriting) return;
  settled_at_ = std::min(settled_at_, now);
  expire(now, emit);
}

void StreamText::break_line(Time now, PieceSink emit) {
  lines_.finish([&](const Piece& piece) { pass(piece, now, emit); });
}

void StreamText::finish(Time now, PieceSink emit) {
  lines_.finish([&](const Piece& piece) { pass(piece, now, emit); });
  if (block_) {
    block_->write("\n", now);  // ends an unfinished sequence
    for (std::string& line : block_->take_scrolled()) emit_line(std::move(line), emit);
    unshown_ = unshown_ || has_rows();
    show_state(emit);
  }
  pen_.reset();
  end_block();
}

}  // namespace ddrun::logs
