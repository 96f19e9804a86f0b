#pragma once

#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace ddrun::test {

/// What stands on a terminal's screen after some output: as much of one as ddrun's own drawing uses. Colours leave no
/// trace, each byte is one column.
class Screen {
 public:
  Screen(std::size_t columns, std::size_t rows) : columns_(columns), rows_(rows), lines_(rows) {}

  void write(std::string_view bytes) {
    while (!bytes.empty()) {
      const char c = bytes.front();
      if (c == '\033') {
        bytes.remove_prefix(escape(bytes));
        continue;
      }
      bytes.remove_prefix(1);
      if (c == '\n') new_line();
      else if (c == '\r') column_ = 0;
      else put(c);
    }
  }
  /// As by the user: the terminal echoes it.
  void type(std::string_view text) {
    for (const char c : text) c == '\n' ? write("\r\n") : put(c);
  }

  /// Without lines and blanks at the end.
  [[nodiscard]] std::vector<std::string> lines() const {
    auto all = scrolled_;
    all.insert(all.end(), lines_.begin(), lines_.end());
    for (auto& line : all) line.erase(line.find_last_not_of(' ') + 1);
    while (!all.empty() && all.back().empty()) all.pop_back();
    return all;
  }

 private:
  void put(char c) {
    if (column_ >= columns_ && wraps_) write("\r\n");
    if (column_ >= columns_) column_ = columns_ - 1;
    auto& line = lines_[row_];
    if (line.size() <= column_) line.resize(column_ + 1, ' ');
    line[column_++] = c;
  }
  void new_line() {
    if (++row_ < rows_) return;
    scrolled_.push_back(lines_.front());
    lines_.erase(lines_.begin());
    lines_.emplace_back();
    --row_;
  }
  std::size_t escape(std::string_view text) {
    if (text[1] == '7') saved_row_ = row_, saved_column_ = column_;
    if (text[1] == '8') row_ = saved_row_, column_ = saved_column_;
    if (text[1] != '[') return 2;
    std::size_t end = 2;
    while (text[end] < '@') ++end;
    const std::string parameters(text.substr(2, end - 2));
    const auto number = static_cast<std::size_t>(std::max(1, std::atoi(parameters.c_str())));
    switch (text[end]) {
      case 'A': row_ -= std::min(row_, number); break;
      case 'B': row_ = std::min(rows_ - 1, row_ + number); break;
      case 'K': lines_[row_].resize(std::min(lines_[row_].size(), column_)); break;
      case 'J':
        lines_[row_].resize(std::min(lines_[row_].size(), column_));
        for (std::size_t i = row_ + 1; i < rows_; ++i) lines_[i].clear();
        break;
      case 'M':
        for (std::size_t i = 0; i < number; ++i) {
          lines_.erase(lines_.begin() + static_cast<std::ptrdiff_t>(row_));
          lines_.emplace_back();
        }
        column_ = 0;
        break;
      case 'h':
      case 'l':
        if (parameters == "?7") wraps_ = text[end] == 'h';
        break;
      default: break;
    }
    return end + 1;
  }

  std::size_t columns_;
  std::size_t rows_;
  std::vector<std::string> lines_;
  std::vector<std::string> scrolled_;
  std::size_t row_ = 0;
  std::size_t column_ = 0;
  std::size_t saved_row_ = 0;
  std::size_t saved_column_ = 0;
  bool wraps_ = true;
};

}  // namespace ddrun::test
