#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ddrun::logs {

/// A line without its end; of text that '\r' overwrites only the last is left, as on a screen.
struct TailLine {
  std::string text;
  std::chrono::system_clock::time_point at;  ///< when the chunk with the line's end was read
  std::uint64_t shown = 0;                   ///< as passed to add() with that chunk
  std::uint64_t turn = 0;                    ///< as passed to add() with that chunk
};

/// The last time a worker wrote to a stream.
struct LastWrite {
  std::chrono::system_clock::time_point at{};  ///< when it was read, or the file's time; the epoch: unknown
  std::uint64_t turn = 0;                      ///< as in TailLine; 0: of a file
};

/// Keeps the last lines of a stream and when they were read. Not thread-safe.
class TailBuffer {
 public:
  /// Bytes that are kept at least; half as many more at most. Enough for a traceback that is followed by 8 KiB of
  /// buffered stdout on the same stream.
  static constexpr std::size_t limit = 24 << 10;
  /// Times that are kept at most. Beyond, lines in the older half may get the time of a chunk that was read later.
  static constexpr std::size_t max_times = 512;

  /// `shown`, `turn`: counts of the caller, returned with the lines that end in this chunk. Chunks within a millisecond
  /// that have the same `shown` are merged and have the latest `turn`.
  void add(std::string_view chunk, std::chrono::system_clock::time_point at, std::uint64_t shown = 0,
           std::uint64_t turn = 0);
  /// Marks missing bytes: drops all that was kept; the next chunk does not begin a line.
  void skip();
  /// The last `count` lines, oldest first. A line whose beginning was dropped is left out, unless it is the only one.
  [[nodiscard]] std::vector<TailLine> lines(std::size_t count) const;

 private:
  /// A chunk, or several: those that came within a millisecond, and those before in which no line ends.
  struct Mark {
    std::uint64_t end;  ///< of its bytes, counted from the stream's beginning
    std::chrono::system_clock::time_point at;
    std::uint64_t shown;
    std::uint64_t turn;
  };
  void drop_front(std::size_t bytes);
  [[nodiscard]] bool last_mark_ends_line(std::string_view next) const;
  void merge_older_marks();

  std::string bytes_;
  std::uint64_t begin_ = 0;  ///< of `bytes_` in the stream
  bool is_cut_ = false;      ///< there were bytes before these
  std::vector<Mark> marks_;
};

}  // namespace ddrun::logs
