#include "rows.hpp"

#include <algorithm>

#include "ddrun/base/text.hpp"

namespace ddrun::logs {

namespace {

constexpr Rows::Key more_key = UINT64_MAX - 1;

/// What a terminal without automatic margins shows of a text: a longer one would take two lines.
std::string row_bytes(std::string_view text) { return concat("\033[?7l", text, "\033[m\033[K\033[?7h"); }

}  // namespace

void Rows::set_size(int columns, int max_rows) {
  columns_ = static_cast<std::size_t>(std::max(columns, 1));
  max_rows_ = static_cast<std::size_t>(std::max(max_rows, 1));
}

void Rows::set(Key key, std::string_view label, std::string_view text) {
  // A character has at most four bytes, and a colour for each would be as many again: no row needs more.
  std::string shown = concat(label, text.substr(0, columns_ * 16));
  Row& row = rows_[key];
  if (row.text == shown) return;
  row = {std::move(shown), ++changes_};
  dirty_ = true;
}

void Rows::remove(Key key) { dirty_ = rows_.erase(key) > 0 || dirty_; }

std::vector<Rows::Drawn> Rows::layout() const {
  std::vector<std::pair<Key, const Row*>> shown;
  for (const auto& [key, row] : rows_) {
    if (key != input_) shown.emplace_back(key, &row);
  }
  const auto input = rows_.find(input_);
  const std::size_t room = max_rows_ - (input != rows_.end() ? 1 : 0);
  const std::size_t more = shown.size() > room ? shown.size() - std::max<std::size_t>(room, 1) + 1 : 0;
  if (more > 0) {
    const auto last = shown.end() - static_cast<std::ptrdiff_t>(more);
    std::nth_element(shown.begin(), last, shown.end(),
                     [](const auto& a, const auto& b) { return a.second->changed > b.second->changed; });
    shown.erase(last, shown.end());
    std::sort(shown.begin(), shown.end());
  }
  std::vector<Drawn> rows;
  for (const auto& [key, row] : shown) rows.push_back({key, row->text});
  if (more > 0) rows.push_back({more_key, concat("… ", more, " more")});
  if (input != rows_.end()) rows.push_back({input_, input->second.text});
  return rows;
}

std::string Rows::draw() {
  std::vector<Drawn> wanted = layout();
  std::string bytes;
  const bool same_places =
      wanted.size() == drawn_.size() && std::equal(wanted.begin(), wanted.end(), drawn_.begin(),
                                                   [](const Drawn& a, const Drawn& b) { return a.key == b.key; });
  const std::size_t last = wanted.empty() ? 0 : wanted.size() - 1;
  if (same_places) {
    // The lowest row is left alone where it can be: the user may be typing behind it.
    for (std::size_t i = 0; i < last; ++i) {
      if (wanted[i].text == drawn_[i].text) continue;
      bytes += concat("\0337\033[", last - i, "A\r", row_bytes(wanted[i].text), "\0338");
    }
    if (!wanted.empty() && wanted[last].text != drawn_[last].text) bytes += concat("\r", row_bytes(wanted[last].text));
  } else {
    bytes = erase();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      bytes += row_bytes(wanted[i].text);
      if (i < last) bytes += "\r\n";
    }
  }
  drawn_ = std::move(wanted);
  dirty_ = false;
  return bytes;
}

std::string Rows::erase() {
  if (drawn_.empty()) return {};
  const std::size_t up = drawn_.size() - 1;
  drawn_.clear();
  dirty_ = !rows_.empty();
  return up > 0 ? concat("\r\033[", up, "A\033[J") : "\r\033[J";
}

std::string Rows::erase_answered() {
  const std::size_t above = drawn_.empty() ? 0 : drawn_.size() - 1;
  drawn_.clear();
  dirty_ = !rows_.empty();
  // The rows above the prompt go; then below the line of the prompt.
  return above > 0 ? concat("\r\033[", above + 1, "A\033[", above, "M\033[1B") : "\r";
}

}  // namespace ddrun::logs
