#include "reason.hpp"

#include <algorithm>

#include "ddrun/base/plain_line.hpp"
#include "ddrun/base/text.hpp"
#include "victim_words.hpp"

namespace ddrun::agent {

namespace {

constexpr std::size_t most_lines = 3;
constexpr std::size_t short_columns = 120;

}  // namespace

std::vector<std::string> reason_lines(const WorkerEnd& worker) {
  std::vector<std::string> lines;
  const bool by_file = worker.error && (!is_victims_words(worker.error->message) || !worker.last_words ||
                                        worker.last_words->of_a_victim);
  if (by_file) {
    for (const std::string& line : split(trim(worker.error->message), '\n')) {
      if (lines.size() == most_lines) {
        lines.back() += " ...";
        break;
      }
      lines.push_back(plain_line(line));
    }
  } else if (worker.last_words) {
    lines = worker.last_words->reason;
  } else if (!worker.stopped_by_ddrun) {
    const auto said = std::find_if(worker.stderr_tail.rbegin(), worker.stderr_tail.rend(),
                                   [](const std::string& line) { return !trim(plain_line(line)).empty(); });
    if (said != worker.stderr_tail.rend()) lines.push_back(plain_line(*said));
  }
  return lines;
}

std::string reason_in_short(const WorkerEnd& worker) {
  if (!worker.why.empty()) return plain_line(worker.why);
  const auto lines = reason_lines(worker);
  if (lines.empty()) return {};
  std::string text(trim(lines.front()));
  // That Python has crashed is known from the signal.
  if (lines.size() > 1 && text.starts_with("Fatal Python error: ")) text += ", " + lines[1];
  return cut_line(std::move(text), short_columns);
}

bool says_the_same(const WorkerError& error, const LastWords& words) {
  const std::string message = plain_line(split(trim(error.message), '\n').front());
  const std::string& reason = words.reason.front();
  return !message.empty() && (reason.find(message) != std::string::npos || message.find(reason) != std::string::npos);
}

}  // namespace ddrun::agent
