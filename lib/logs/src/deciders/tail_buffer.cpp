#include "ddrun/logs/tail_buffer.hpp"

#include <algorithm>

namespace ddrun::logs {

void TailBuffer::drop_front(std::size_t bytes) {
  if (bytes == 0) return;
  bytes_.erase(0, bytes);
  begin_ += bytes;
  is_cut_ = true;
  std::erase_if(marks_, [&](const Mark& mark) { return mark.end <= begin_; });
}

void TailBuffer::skip() {
  drop_front(bytes_.size());
  is_cut_ = true;
}

void TailBuffer::add(std::string_view chunk, std::chrono::system_clock::time_point at, std::uint64_t shown,
                     std::uint64_t turn) {
  if (chunk.empty()) return;
  if (chunk.size() >= limit) {
    drop_front(bytes_.size());
    const std::size_t left_out = chunk.size() - limit;
    begin_ += left_out;
    is_cut_ = is_cut_ || left_out > 0;
    chunk.remove_prefix(left_out);
  } else if (bytes_.size() + chunk.size() > limit + limit / 2) {
    // Only every `limit / 2` bytes, so that short lines do not move the whole buffer each time.
    drop_front(bytes_.size() - std::min(limit, bytes_.size()));
  }
  const std::uint64_t end = begin_ + bytes_.size() + chunk.size();
  if (!marks_.empty() && marks_.back().shown == shown && at - marks_.back().at < std::chrono::milliseconds(1) &&
      at >= marks_.back().at) {
    marks_.back().end = end;
    marks_.back().turn = turn;
  } else {
    if (!marks_.empty() && !last_mark_ends_line(chunk)) marks_.pop_back();
    if (marks_.size() == max_times) merge_older_marks();
    marks_.push_back({end, at, shown, turn});
  }
  bytes_.append(chunk);
}

/// Whether the text of a line ends in the last mark if `next` follows: the '\n' behind it may be the first of `next`.
bool TailBuffer::last_mark_ends_line(std::string_view next) const {
  const std::uint64_t begin = marks_.size() > 1 ? marks_[marks_.size() - 2].end : begin_;
  return next.front() == '\n' || bytes_.find('\n', begin - begin_ + 1) != std::string::npos;
}

/// Keeps every second mark of the older half.
void TailBuffer::merge_older_marks() {
  std::size_t kept = 0;
  for (std::size_t i = 1; i < max_times / 2; i += 2) marks_[kept++] = marks_[i];
  marks_.erase(marks_.begin() + static_cast<std::ptrdiff_t>(kept), marks_.begin() + max_times / 2);
}

std::vector<TailLine> TailBuffer::lines(std::size_t count) const {
  std::vector<TailLine> lines;
  std::string_view text = bytes_;
  if (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  while (!text.empty() && lines.size() < count) {
    const std::size_t newline = text.rfind('\n');
    const bool first = newline == std::string_view::npos;
    if (first && is_cut_ && !lines.empty()) break;
    std::string_view line = first ? text : text.substr(newline + 1);
    const auto mark = std::lower_bound(marks_.begin(), marks_.end(), begin_ + text.size(),
                                       [](const Mark& one, std::uint64_t end) { return one.end < end; });
    text = first ? std::string_view{} : text.substr(0, newline);
    while (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    line = line.substr(line.rfind('\r') + 1);  // npos + 1 is 0: all of it
    lines.push_back({std::string(line), {}});
    if (mark != marks_.end()) {
      lines.back().at = mark->at;
      lines.back().shown = mark->shown;
      lines.back().turn = mark->turn;
    }
  }
  std::reverse(lines.begin(), lines.end());
  return lines;
}

}  // namespace ddrun::logs
