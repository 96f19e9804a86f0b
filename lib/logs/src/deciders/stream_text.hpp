#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "block.hpp"
#include "ddrun/logs/line_assembler.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::logs {

/// Takes pieces of a stream. Borrows a callable, as a function's argument only.
class PieceSink {
 public:
  template <class Callable>
  requires(!std::is_same_v<std::remove_cvref_t<Callable>, PieceSink>) PieceSink(Callable&& callable)
      : object_(&callable), call_([](const void* object, const Piece& piece) {
          (*static_cast<const std::remove_reference_t<Callable>*>(object))(piece);
        }) {}
  void operator()(const Piece& piece) const { call_(object_, piece); }

 private:
  const void* object_;
  void (*call_)(const void*, const Piece&);
};

/// The text of one stream: splits its bytes into lines, and keeps those that it can still change. A decider: it has no
/// clock and no descriptor.
///
/// Lines pass as they are until one is rewritten ('\r'), or the cursor moves otherwise. From then on a Block shows what
/// a terminal would. A line of it is finished, and given out, when the cursor will not come back to it:
///  * where the cursor has not moved up, `settle_delay` after the last rewriting, since the first bar of several ends
///    with a newline, and only then the cursor comes back;
///  * where it has, a line above all that it came to within `reach_time`; and all lines above the cursor when new
///    ones follow a block that it does not come back to any more.
/// When nothing is left that could change, lines pass again.
///
/// For a terminal each line is complete in itself: styles that were left on are switched on again in the next line,
/// tabs are blanks, and what would change other lines or the terminal is left out.
class StreamText {
 public:
  using Time = Block::Time;
  static constexpr std::chrono::milliseconds settle_delay{100};
  static constexpr std::chrono::milliseconds reach_time{1000};

  struct Options {
    Progress progress = Progress::all;  ///< rows, last or all
    bool terminal = false;
    std::chrono::milliseconds state_interval{10'000};  ///< `last`: of the state of lines that are rewritten
    std::chrono::milliseconds idle_delay{200};         ///< on a terminal an unfinished line is shown after this silence
  };
  enum class Mode {
    plain,      ///< lines pass
    rewriting,  ///< the last line can change
    moving,     ///< the cursor moves up, or is hidden, as before it does
  };

  /// `options` are borrowed.
  explicit StreamText(const Options& options) : options_(options) {}

  /// Of the terminal that the program sees.
  void set_size(int columns, int rows);
  /// Takes the next bytes and gives out what is finished: whole lines, and on a terminal without rows parts of one.
  void feed(std::string_view bytes, Time now, PieceSink emit);
  /// On no terminal, and nothing in these bytes changes a line: feed_lines() is the faster feed().
  [[nodiscard]] bool passes(std::string_view bytes) const {
    if (block_ || options_.terminal) return false;
    return options_.progress == Progress::all ||
           (bytes.find('\r') == std::string_view::npos && bytes.find('\033') == std::string_view::npos &&
            !lines_.partial().ends_with('\r'));
  }
  template <class Emit>
  void feed_lines(std::string_view bytes, Emit&& emit) {
    lines_.feed(bytes, emit);
  }
  /// The same for a whole line.
  [[nodiscard]] bool passes(const Piece& line) const {
    return line.end == PieceEnd::terminated && !line.continues && !lines_.has_partial() && passes(line.text);
  }
  /// Takes a piece that another StreamText has given out.
  void feed(const Piece& piece, Time now, PieceSink emit);
  /// When expire() has something to do.
  [[nodiscard]] std::optional<Time> deadline() const;
  void expire(Time now, PieceSink emit);
  /// Gives out lines that wait for `settle_delay` only.
  void release(Time now, PieceSink emit);
  /// Breaks an unfinished line.
  void break_line(Time now, PieceSink emit);
  /// The end of the stream: gives out all that is not yet shown.
  void finish(Time now, PieceSink emit);

  /// Bytes of an unfinished line.
  [[nodiscard]] std::size_t unfinished_bytes() const { return lines_.partial_bytes(); }
  /// The lines that can change; null in Mode::plain.
  [[nodiscard]] const Block* block() const { return block_.get(); }

 private:
  [[nodiscard]] bool has_rows() const { return options_.progress == Progress::rows; }
  [[nodiscard]] std::string_view feed_plain(std::string_view bytes, Time now, PieceSink emit);
  [[nodiscard]] std::string_view feed_block(std::string_view bytes, Time now, PieceSink emit);
  /// False: the piece has gone to the block.
  bool pass(const Piece& piece, Time now, PieceSink emit);
  /// The line without what a shared terminal must not get.
  [[nodiscard]] std::string render(std::string_view line);
  void begin_block(std::string_view text, Time now, Time settled_at);
  void write_block(std::string_view text, Time now);
  void settle(Time now, PieceSink emit);
  [[nodiscard]] std::optional<Time> front_finished_at() const;
  void show_state(PieceSink emit);
  void end_block();
  void set_pen(const Pen& pen);
  static void emit_line(std::string text, PieceSink emit);

  const Options& options_;
  LineAssembler lines_;
  std::unique_ptr<Block> block_;
  std::unique_ptr<Pen> pen_;  ///< on a terminal, of the next line; null: none
  Mode mode_ = Mode::plain;
  bool unshown_ = false;  ///< the block has changed since it was shown
  int columns_ = 80;
  int rows_ = 24;
  Time idle_at_{};     ///< the unfinished line is shown then
  Time settled_at_{};  ///< lines above the last one are finished then
  Time state_at_{};    ///< the state is shown then, if it is unshown
};

}  // namespace ddrun::logs
