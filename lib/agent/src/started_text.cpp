#include "started_text.hpp"

#include <algorithm>

#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::agent {

std::string started_text(const std::vector<std::pair<int, pid_t>>& workers, std::size_t most) {
  std::string text;
  std::size_t items = 0;
  for (std::size_t i = 0; i < workers.size(); ++items) {
    if (items == most) return concat(text, ", and ", workers.size() - i, " more");
    const int rank = workers[i].first;
    const pid_t pid = workers[i].second;
    std::size_t next = i + 1;
    const auto goes_on = [&](std::size_t at) {
      const int ahead = static_cast<int>(at - i);
      return workers[at].first == rank + ahead && workers[at].second == pid + ahead;
    };
    while (next < workers.size() && goes_on(next)) ++next;
    if (!text.empty()) text += ", ";
    // Two are read more easily one by one.
    if (next - i < 3) next = i + 1;
    if (next == i + 1) text += concat("rank ", rank, " pid ", pid);
    else text += concat("ranks ", rank, "-", workers[next - 1].first, " pids ", pid, "-", workers[next - 1].second);
    i = next;
  }
  return text;
}

void say_started(const std::vector<std::pair<int, pid_t>>& workers, const std::string& program,
                 const std::string& directory) {
  constexpr std::size_t items_of_a_line = 16;
  if (workers.empty()) return;
  say(Level::info, started_text(workers, items_of_a_line));
  say(Level::debug, concat("each runs ", shell_quote(program), " in ", shell_quote(directory)));
  for (std::size_t at = items_of_a_line; at < workers.size() + items_of_a_line; at += items_of_a_line) {
    const auto from = workers.begin() + static_cast<std::ptrdiff_t>(at - items_of_a_line);
    const auto to = workers.begin() + static_cast<std::ptrdiff_t>(std::min(at, workers.size()));
    if (workers.size() > items_of_a_line) say(Level::debug, started_text({from, to}, items_of_a_line));
  }
}

}  // namespace ddrun::agent
