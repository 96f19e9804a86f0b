#include "ddrun/logs/tail_buffer.hpp"

#include <algorithm>

namespace ddrun::logs {

void TailBuffer::add(std::string_view chunk) {
  if (chunk.size() >= limit) {
    cut_ = cut_ || !bytes_.empty() || chunk.size() > limit;
    bytes_.assign(chunk.substr(chunk.size() - limit));
    return;
  }
  // Moved only every `limit` bytes, so that short lines do not move the whole buffer each time.
  if (bytes_.size() + chunk.size() > 2 * limit) {
    bytes_.erase(0, bytes_.size() - limit);
    cut_ = true;
  }
  bytes_.append(chunk);
}

std::vector<std::string> TailBuffer::lines(std::size_t count) const { return last_lines(bytes_, count, cut_); }

std::vector<std::string> last_lines(std::string_view text, std::size_t count, bool cut) {
  std::vector<std::string> lines;
  if (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  while (!text.empty() && lines.size() < count) {
    const std::size_t newline = text.rfind('\n');
    const bool first = newline == std::string_view::npos;
    if (first && cut && !lines.empty()) break;
    std::string_view line = first ? text : text.substr(newline + 1);
    text = first ? std::string_view{} : text.substr(0, newline);
    while (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    line = line.substr(line.rfind('\r') + 1);  // npos + 1 is 0: all of it
    lines.emplace_back(line);
  }
  std::reverse(lines.begin(), lines.end());
  return lines;
}

}  // namespace ddrun::logs
