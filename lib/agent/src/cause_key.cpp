#include <algorithm>
#include <regex>

#include "ddrun/base/text.hpp"
#include "evidence.hpp"

namespace ddrun::agent {

namespace {

constexpr std::size_t max_columns = 300;

/// Addresses; numbers of ranks, processes and devices; durations; dates, times, ports and other long numbers.
const char* const changing = R"(0x[0-9a-f]+|((?:rank|pid|process|worker|node|gpu|cuda|device|thread|port)[ :=#_]*)\d+)"
                             R"(|\d+(?:\.\d+)?(?= ?(?:[num]?s|sec(?:onds)?|milliseconds|min(?:utes)?|h(?:ours)?)\b))"
                             R"(|\d+[.:-]\d+[.:-][\d.:-]*\d|\d+:\d+|\d{9,})";

std::string without_changing_numbers(std::string text, pid_t pid) {
  text = std::regex_replace(text, std::regex(changing, std::regex::icase), "$1#");
  return std::regex_replace(text, std::regex(concat(R"(\b)", pid, R"(\b)")), "#");
}

/// "File "train.py", line 3, in f": the last frame outside libraries, else the first.
std::string user_frame(const std::vector<std::string>& traceback) {
  std::string found;
  for (const std::string& line : traceback) {
    const std::size_t begin = line.find("File \"");
    if (begin == std::string::npos) continue;
    const auto names = [&](const char* part) { return line.find(part) != std::string::npos; };
    const bool library =
        names("/site-packages/") || names("/dist-packages/") || names("/lib/python3") || names("<frozen ");
    if (!library || found.empty()) found = cut_line(std::string(trim(plain_line(line.substr(begin)))), max_columns);
  }
  return found;
}

}  // namespace

std::string cause_key(const WorkerEnd& worker) {
  if (!worker.error && !worker.last_words) return {};
  std::string reason = cut_line(join(reason_lines(worker), "; "), max_columns);
  if (reason.empty()) return {};
  std::string frame = worker.last_words ? user_frame(worker.last_words->text) : std::string();
  if (frame.empty() && worker.error) frame = user_frame(split(worker.error->traceback, '\n'));
  return concat(without_changing_numbers(std::move(reason), worker.pid), frame.empty() ? "" : concat(" (", frame, ")"));
}

}  // namespace ddrun::agent
