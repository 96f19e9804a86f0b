#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/logs/console.hpp"
#include "ddrun/logs/line_assembler.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::logs {

class Fold;
class Rows;

/// Between LogSpec::relay_mark, the rank, the prefix and the text of a line.
constexpr char mark_end = '\x02';

struct RankConsoleOptions {
  RankConsoleOptions() = default;
  /// What `log` asks for, on a terminal or elsewhere.
  RankConsoleOptions(const LogSpec& log, bool is_terminal);

  std::size_t queue_high = std::size_t{1} << 20U;  ///< as in Console
  bool fold = false;                               ///< equal lines of several ranks are shown once
  bool knows_ranks = true;                         ///< each stream is opened before one writes
  Progress progress = Progress::all;               ///< without a terminal that can erase, `rows` is `last`
  bool color = false;                              ///< of labels
  bool timestamps = false;
  Milliseconds state_interval{10'000};  ///< of the last state of a line that is rewritten, without rows
  Milliseconds idle_flush_delay{200};   ///< on a terminal an unfinished line is shown after this silence
  std::optional<int> input_rank;        ///< reads from this terminal
  std::function<bool()> input_awaited;  ///< whether it waits for input now; may be empty
};

/// One stream of a rank. RankConsole sets all but the first five.
struct RankStream {
  int rank = 0;
  std::string prefix{};  ///< of its lines
  std::string host{};    ///< if the prefix names it
  bool labelled = true;  ///< the prefix is a label of ddrun: it is coloured, and one for several ranks may replace it
  bool is_error = false;
  LineAssembler lines{};

  int source = -1;            ///< of Fold
  std::uint64_t row = 0;      ///< of Rows
  bool rewrites = false;      ///< has used '\r'
  bool moves_cursor = false;  ///< and otherwise: its output is not folded and has no row
  std::string state{};        ///< what '\r' would rewrite, without it
  bool state_unshown = false;
  bool prompts = false;      ///< the user types behind its unfinished line
  bool awaits_idle = false;  ///< its unfinished line is shown at `idle_at`
  Deadline idle_at{};
  std::size_t partial_bytes = 0;  ///< as counted in the total
};

/// A console that shows the lines of many ranks: equal ones once, and of lines that are rewritten a row on a terminal,
/// elsewhere the last state. Used on the executor's thread only; never blocks.
class RankConsole {
 public:
  /// `fd` is borrowed.
  RankConsole(const boost::asio::any_io_executor& executor, int fd, RankConsoleOptions options);
  ~RankConsole();
  RankConsole(const RankConsole&) = delete;
  RankConsole& operator=(const RankConsole&) = delete;

  [[nodiscard]] Console& console() { return *console_; }
  [[nodiscard]] const Console& console() const { return *console_; }

  /// The stream is borrowed until close_stream().
  void open_stream(RankStream& stream);
  /// The next bytes of the stream.
  void feed(RankStream& stream, std::string_view chunk);
  /// A piece of it, where another LineAssembler has split the bytes. flush() has to follow.
  void add(RankStream& stream, const Piece& piece);
  /// Shows its unfinished line.
  void close_stream(RankStream& stream);

  /// Queues lines of ddrun itself behind all that is held.
  void add_text(std::string_view text);
  /// The same for a piece of another text.
  void add_unlabelled(const void* writer, std::string_view prefix, const Piece& piece);
  /// Writes soon what need not be held.
  void flush();
  /// Moves all that is held to the console's queue.
  void release();
  /// Shows what is held as far as that is possible without blocking; nothing is shown afterwards.
  void close();

  /// Lines shown; one that several ranks have counts once.
  [[nodiscard]] std::uint64_t lines_shown() const { return lines_shown_; }

 private:
  void add_piece(RankStream& stream, std::string_view prefix, const Piece& piece, bool folds, Deadline now);
  [[nodiscard]] bool takes_cursor(RankStream& stream, std::string_view text);
  void settle(const RankStream& stream, Deadline now);
  void show_piece(RankStream& stream, std::string_view prefix, const Piece& piece);
  void show_folded(const std::vector<int>& sources, std::string_view lines, Deadline at);
  /// Takes what '\r' rewrites; true if there is no line to show.
  [[nodiscard]] bool take_state(RankStream& stream, const Piece& piece);
  void take_unfinished_state(RankStream& stream);
  void set_state(RankStream& stream, std::string_view text);
  void clear_state(RankStream& stream);
  void show_state(RankStream& stream);
  void limit_partial_bytes(RankStream& stream);
  void update_partial_bytes(RankStream& stream);
  void await_idle(RankStream& stream);
  void show_unfinished(RankStream& stream);
  void on_idle();
  void check_prompt(RankStream& stream);
  void erase_rows();
  void draw_rows();
  [[nodiscard]] std::string_view stamped(std::string_view prefix, Deadline at, std::string& scratch) const;
  struct Timer {
    boost::asio::steady_timer timer;
    bool armed = false;
  };
  /// A timer that is armed stays so: none is set to an earlier time.
  void arm(Timer& timer, Deadline at, void (RankConsole::*then)());
  void await_fold_deadline();
  void on_fold_deadline();
  void on_progress();

  struct Source {
    int rank;
    std::string prefix;
    std::string host;
    const RankStream* stream;
  };

  RankConsoleOptions options_;
  std::shared_ptr<Console> console_;
  std::unique_ptr<Fold> fold_;
  std::unique_ptr<Rows> rows_;
  std::map<int, Source> sources_;     ///< by their number in fold_
  std::vector<RankStream*> streams_;  ///< that rewrite a line or have an unfinished one to show
  RankStream* prompt_ = nullptr;
  std::vector<int> folded_sources_;  ///< that showed a folded line last
  std::string folded_prefix_;
  const void* folded_writer_ = nullptr;  ///< of Console: the stream, or one of the next for several sources
  char writers_[2]{};
  std::string stamped_prefix_;
  std::size_t partial_bytes_ = 0;
  std::uint64_t lines_shown_ = 0;
  Deadline drawn_at_{};
  Timer fold_timer_;
  Timer idle_timer_;
  Timer rows_timer_;
  Timer progress_timer_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ddrun::logs
