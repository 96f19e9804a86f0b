#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace ddrun::logs {

/// The unfinished lines of many writers, one row each, below all other output of a terminal. Decides what stands where
/// and gives the bytes that draw it; it has no clock and no descriptor.
///
/// Not more than `max_rows` are drawn: those that changed last, by key, and one that counts the others. The lowest row
/// is that of the writer whose input the terminal echoes.
class Rows {
 public:
  using Key = std::uint64_t;

  void set_size(int columns, int max_rows);
  /// The row with this key is the lowest; none by default.
  void set_input(Key key) { input_ = key; }

  /// `text`: one line without control sequences that move the cursor.
  void set(Key key, std::string_view label, std::string_view text);
  void remove(Key key);
  [[nodiscard]] bool empty() const { return rows_.empty(); }

  /// draw() would change something.
  [[nodiscard]] bool is_dirty() const { return dirty_; }
  [[nodiscard]] bool is_drawn() const { return !drawn_.empty(); }
  /// Bytes that bring the rows up to date; the cursor stands at the start of a line or behind the lowest row, and
  /// stands behind the lowest row afterwards, or where that row was when there is none any more.
  [[nodiscard]] std::string draw();
  /// Bytes that remove the rows; the cursor is then at the start of the line of the first.
  [[nodiscard]] std::string erase();
  /// The same after the terminal has echoed the answer to the prompt in the lowest row, which stays: the cursor is at
  /// the start of the line below.
  [[nodiscard]] std::string erase_answered();

 private:
  struct Row {
    std::string text;  ///< with label
    std::uint64_t changed;
  };
  struct Drawn {
    Key key;
    std::string text;
  };
  [[nodiscard]] std::vector<Drawn> layout() const;

  std::map<Key, Row> rows_;
  std::vector<Drawn> drawn_;
  Key input_ = UINT64_MAX;
  std::size_t columns_ = 80;
  std::size_t max_rows_ = 8;
  std::uint64_t changes_ = 0;
  bool dirty_ = false;
};

}  // namespace ddrun::logs
