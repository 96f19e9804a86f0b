#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/logs/console.hpp"
#include "ddrun/logs/line_assembler.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::logs {

class Fold;
class StreamText;
struct ScreenSize;

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
  bool frames = false;                  ///< what is written are frames (piece_frames.hpp)
  std::uint32_t first_key = 1;          ///< of workers there
  Milliseconds state_interval{10'000};  ///< of the last state of a line that is rewritten, without rows
  Milliseconds idle_flush_delay{200};   ///< on a terminal an unfinished line is shown after this silence
};

/// One stream of a rank. RankConsole sets all but the first nine.
struct RankStream {
  int rank = 0;
  int position = 0;         ///< of its rows and its colour; another one for each rank
  int highest_rank = 0;     ///< of those whose lines may be shown with this one's
  std::string_view role{};  ///< of its program, if there are several (borrowed); equal lines of one are shown once
  std::string prefix{};     ///< of its lines
  std::string scope{};      ///< what the prefix has before the rank: "node7", "trainer"; may be empty
  bool is_input = false;    ///< what the user types is echoed here: its row is the lowest
  bool labelled = true;  ///< the prefix is a label of ddrun: it is coloured, and one for several ranks may replace it
  bool is_error = false;

  std::shared_ptr<StreamText> text{};
  Fold* fold = nullptr;              ///< null: its lines are shown as they are
  int source = -1;                   ///< of `fold`
  std::uint32_t key = 0;             ///< in frames
  std::uint64_t changed = 0;         ///< when its row changed last
  bool is_live = false;              ///< it has lines that can change, or waits for a deadline
  std::size_t unfinished_bytes = 0;  ///< as counted in the total
};

/// A console that shows the lines of many ranks: equal ones once, and of lines that are rewritten rows on a terminal,
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

  /// The terminal that this stream's program should see: this one less the columns that a label takes.
  [[nodiscard]] ScreenSize worker_screen(const RankStream& stream);
  /// The stream is borrowed until close_stream().
  void open_stream(RankStream& stream);
  /// The next bytes of the stream.
  void feed(RankStream& stream, std::string_view chunk);
  /// The same in pieces, as another RankConsole found them.
  void feed(RankStream& stream, const Piece& piece);
  /// Shows its unfinished line.
  void close_stream(RankStream& stream);

  /// Queues lines of ddrun itself behind all that is held.
  void add_text(std::string_view text);
  /// The same for a piece of another text.
  void add_unlabelled(const void* writer, std::string_view prefix, const Piece& piece);
  /// Writes soon what need not be held; once for all that is added in this turn of the loop.
  void flush();
  /// The same now, as far as that is possible without blocking.
  void flush_now();
  /// Moves all that is held to the console's queue.
  void release();
  /// While another program draws on the terminal no rows are drawn.
  void set_suspended(bool suspended);
  /// The terminal may have another size.
  void resize();
  /// Shows what is held as far as that is possible without blocking; nothing is shown afterwards.
  void close();

  /// Lines shown; one that several ranks have counts once.
  [[nodiscard]] std::uint64_t lines_shown() const { return lines_shown_; }
  /// The last output was not the end of a line.
  [[nodiscard]] bool ends_mid_line() const;

 private:
  struct Display;
  struct Timer {
    boost::asio::steady_timer timer;
    std::optional<Deadline> at{};
  };
  struct Source {
    int rank;
    std::string prefix;
    std::string scope;
  };
  void announce(RankStream& stream);
  void add_frames(std::uint32_t key, bool is_error, Piece piece);
  [[nodiscard]] bool needs_time() const;
  void end_feed(RankStream& stream, Deadline now);
  [[nodiscard]] bool folds(const RankStream& stream, Deadline now) const;
  void take_piece(RankStream& stream, const Piece& piece, Deadline now);
  void show_piece(RankStream& stream, const Piece& piece, Deadline now);
  /// The one of this role; made on first use.
  [[nodiscard]] Fold& fold_of(std::string_view role);
  [[nodiscard]] std::string label_of(const Fold& fold, std::span<const int> sources) const;
  void show_folded(const Fold& fold, const std::vector<int>& sources, std::string_view lines, Deadline at);
  void add_piece(const void* writer, std::string_view prefix, const Piece& piece);
  void on_change(RankStream& stream, Deadline now);
  void on_stream_deadline();
  void on_fold_deadline();
  void erase_rows();
  void draw_rows();
  void count_unfinished(RankStream& stream);
  [[nodiscard]] std::string_view stamped(std::string_view prefix, Deadline at);
  void arm(Timer& timer, std::optional<Deadline> at, void (RankConsole::*then)());

  RankConsoleOptions options_;
  std::shared_ptr<Console> console_;
  std::list<std::pair<std::string, std::unique_ptr<Fold>>> folds_;  ///< with their roles, in order of first use
  std::unique_ptr<Display> display_;
  std::map<std::pair<const Fold*, int>, Source> sources_;      ///< by their number there
  std::map<std::pair<int, std::string>, std::uint32_t> keys_;  ///< of workers in frames, by rank and prefix
  const Fold* last_fold_ = nullptr;                            ///< that showed a line
  std::vector<int> folded_sources_;                            ///< that showed a folded line last
  std::string folded_prefix_;
  std::string stamped_prefix_;
  std::size_t unfinished_bytes_ = 0;
  std::uint64_t lines_shown_ = 0;
  Timer fold_timer_;
  Timer stream_timer_;
  Timer rows_timer_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ddrun::logs
