#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ddrun::logs {

/// A line of a stream's end, without its own end; of what '\r' overwrites only the last is left, as on a screen.
struct TailLine {
  std::string text;
  std::chrono::system_clock::time_point at;  ///< when the chunk with the line's end was read
  std::uint64_t shown = 0;                   ///< what `add` was told with that chunk
  std::uint64_t turn = 0;                    ///< the same
};

/// Remembers the end of a stream, and when it came.
class TailBuffer {
 public:
  /// Bytes; this many at least are remembered, and half as many more at most. A traceback is still there when 8 KiB of
  /// buffered stdout follow on the same stream at the worker's end.
  static constexpr std::size_t limit = 24 << 10;

  /// `shown`, `turn`: any counts that the caller wants back with the lines that end in this chunk; of chunks that came
  /// within a millisecond, those with the same `shown`, they get the latest `turn`.
  void add(std::string_view chunk, std::chrono::system_clock::time_point at, std::uint64_t shown = 0,
           std::uint64_t turn = 0);
  /// Bytes are missing here: what was remembered is forgotten, and what comes next does not begin a line.
  void skip();
  /// The last `count` lines, oldest first. A line whose beginning is not remembered is left out, unless it is the only
  /// one.
  [[nodiscard]] std::vector<TailLine> lines(std::size_t count) const;

 private:
  /// A chunk, or several that came within a millisecond.
  struct Mark {
    std::uint64_t end;  ///< of its bytes, counted from the stream's beginning
    std::chrono::system_clock::time_point at;
    std::uint64_t shown;
    std::uint64_t turn;
  };
  void drop_front(std::size_t bytes);

  std::string bytes_;
  std::uint64_t begin_ = 0;  ///< of `bytes_` in the stream
  bool is_cut_ = false;      ///< there were bytes before these
  std::vector<Mark> marks_;
};

}  // namespace ddrun::logs
