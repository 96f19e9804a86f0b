#pragma once

#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace ddrun::logs {

/// How a piece of output ends.
enum class PieceEnd {
  terminated,  ///< its last byte is the end of a line, '\n' or '\r'
  cut,         ///< the line ends here without such a byte: end of the stream, or too long
  open,        ///< part of a line that was flushed early; the rest may follow
};

/// A line, or a part of one.
struct Piece {
  std::string_view text;
  bool continues = false;  ///< the line's beginning was flushed before, as `open`
  PieceEnd end = PieceEnd::terminated;
};

/// Splits a stream of bytes into lines. A line ends with "\n", "\r\n" or "\r" (progress bars), which stays part of it;
/// other bytes have no meaning. An unfinished line is buffered; between lines no memory is used. Not thread-safe.
class LineAssembler {
 public:
  /// A longer line is cut.
  static constexpr std::size_t max_line_bytes = std::size_t{16} << 20U;

  /// Calls `emit(const Piece&)` for each line that `chunk` completes, until it returns false if it returns a boolean.
  /// The text is valid during the call only. Returns the bytes behind the last piece then, else none.
  template <class Emit>
  std::string_view feed(std::string_view chunk, Emit&& emit) {
    const char* at = chunk.data();
    const char* const end = at + chunk.size();
    const auto rest = [&](const char* from) { return std::string_view(from, static_cast<std::size_t>(end - from)); };
    if (at == end) return {};
    if (flushed_cr_) {
      // The flushed part ended in '\r'. Only now is it known whether a '\n' belongs to it.
      flushed_cr_ = false;
      if (*at != '\n') continues_ = false;
    }
    LineEnds ends{at, end};
    if (!partial_.empty()) {
      bool goes_on = true;
      at = complete(at, end, ends, emit, goes_on);
      if (at == nullptr) return {};
      if (!goes_on) return rest(at);
    }
    while (at != end) {
      const char* const stop = ends.end_of_line(at);
      if (stop == nullptr) break;
      const bool goes_on = emit_piece({at, static_cast<std::size_t>(stop - at)}, PieceEnd::terminated, emit);
      at = stop;
      if (!goes_on) return rest(at);
    }
    if (at != end) hold(at, end, emit);
    return {};
  }

  /// The beginning of the present line was flushed before.
  [[nodiscard]] bool continues() const { return continues_; }
  [[nodiscard]] bool has_partial() const { return !partial_.empty(); }
  /// Bytes of the unfinished line that are buffered.
  [[nodiscard]] std::size_t partial_bytes() const { return partial_.size(); }
  [[nodiscard]] std::string_view partial() const { return partial_; }
  /// Forgets the unfinished line: what follows is a new one.
  void begin_line() {
    clear_partial();
    continues_ = flushed_cr_ = false;
  }

  /// Ends the unfinished line, which may be empty, with `text`.
  template <class Emit>
  void end_line(std::string_view text, PieceEnd end, Emit&& emit) {
    partial_ += text;
    flushed_cr_ = false;
    emit_piece(partial_, end, emit);
    clear_partial();
  }

  /// Goes on with this unfinished line; there is none.
  void resume(std::string line) { partial_ = std::move(line); }

  /// Emits the unfinished line without waiting for its end.
  template <class Emit>
  void flush_partial(Emit&& emit) {
    if (partial_.empty()) return;
    flushed_cr_ = partial_.back() == '\r';
    emit_piece(partial_, PieceEnd::open, emit);
    continues_ = true;
    clear_partial();
  }

  /// To be called at the end of the stream: emits the unfinished line as `cut`.
  template <class Emit>
  void finish(Emit&& emit) {
    if (!partial_.empty() || continues_) emit_piece(partial_, PieceEnd::cut, emit);
    clear_partial();
    flushed_cr_ = false;
  }

 private:
  /// Finds line ends from left to right. Caches the next '\n' and the next '\r', so that a chunk with many of one and
  /// none of the other is searched once.
  struct LineEnds {
    const char* at;
    const char* end;
    const char* newline = search('\n', at);
    const char* carriage = search('\r', at);

    const char* search(char c, const char* from) const {
      const void* found = std::memchr(from, c, static_cast<std::size_t>(end - from));
      return found != nullptr ? static_cast<const char*>(found) : end;
    }
    /// One past the end of the line that starts at `from`; nullptr if the chunk does not show it.
    const char* end_of_line(const char* from) {
      if (newline < from) newline = search('\n', from);
      if (carriage < from) carriage = search('\r', from);
      if (newline < carriage) return newline + 1;
      if (carriage == end || carriage + 1 == end) return nullptr;
      return carriage[1] == '\n' ? carriage + 2 : carriage + 1;
    }
  };

  template <class Emit>
  bool emit_piece(std::string_view text, PieceEnd end, Emit& emit) {
    const Piece piece{text, std::exchange(continues_, false), end};
    if constexpr (std::is_void_v<decltype(emit(piece))>) return emit(piece), true;
    else return emit(piece);
  }

  /// Completes the buffered line from the chunk; nullptr if the whole chunk was buffered.
  template <class Emit>
  const char* complete(const char* at, const char* end, LineEnds& ends, Emit& emit, bool& goes_on) {
    const char* stop = at;
    if (partial_.back() == '\r') {
      if (*at == '\n') ++stop;
    } else {
      stop = ends.end_of_line(at);
    }
    if (stop == nullptr) {
      hold(at, end, emit);
      return nullptr;
    }
    partial_.append(at, stop);
    goes_on = emit_piece(partial_, PieceEnd::terminated, emit);
    clear_partial();
    return stop;
  }

  template <class Emit>
  void hold(const char* at, const char* end, Emit& emit) {
    partial_.append(at, end);
    if (partial_.size() < max_line_bytes) return;
    emit_piece(partial_, PieceEnd::cut, emit);
    clear_partial();
  }

  void clear_partial() {
    partial_.clear();
    // Thousands of streams are idle between lines: none may keep the memory of its longest one.
    if (partial_.capacity() > 4096) std::string().swap(partial_);
  }

  std::string partial_;
  bool continues_ = false;   ///< the beginning of the present line was flushed
  bool flushed_cr_ = false;  ///< and it ended in '\r'
};

}  // namespace ddrun::logs
