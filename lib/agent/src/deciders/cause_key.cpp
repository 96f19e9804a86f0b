#include <regex.h>

#include <array>
#include <string_view>

#include "ddrun/base/text.hpp"
#include "evidence.hpp"

namespace ddrun::agent {

namespace {

constexpr std::size_t max_columns = 300;

/// Addresses; numbers of ranks, processes and devices; durations; dates, times, ports and other long numbers. What is
/// in group 1 or 4 stays.
const char* const changing =
    "0x[0-9a-f]+|((rank|pid|process|worker|node|gpu|cuda|device|thread|port)[ :=#_]*)[0-9]+|"
    "[0-9]+(\\.[0-9]+)?( ?([num]?s|sec(onds)?|milliseconds|min(utes)?|h(ours)?)\\b)|"
    "[0-9]+[.:-][0-9]+[.:-][0-9.:-]*[0-9]|[0-9]+:[0-9]+|[0-9]{9,}";

/// `text` with '#' for each match of the extended regular expression.
std::string replace_all(const std::string& text, const std::string& expression) {
  regex_t compiled{};
  if (::regcomp(&compiled, expression.c_str(), REG_EXTENDED | REG_ICASE) != 0) return text;
  std::array<regmatch_t, 5> groups{};
  const char* rest = text.c_str();
  const auto group = [&](std::size_t number) {
    const auto [begin, end] = groups.at(number);
    return begin < 0 ? std::string_view() : std::string_view(rest + begin, static_cast<std::size_t>(end - begin));
  };
  std::string replaced;
  while (::regexec(&compiled, rest, groups.size(), groups.data(), rest == text.c_str() ? 0 : REG_NOTBOL) == 0) {
    replaced += concat(std::string_view(rest, static_cast<std::size_t>(groups[0].rm_so)), group(1), "#", group(4));
    rest += groups[0].rm_eo;
  }
  ::regfree(&compiled);
  return replaced + rest;
}

std::string without_changing_numbers(const std::string& text, pid_t pid) {
  return replace_all(replace_all(text, changing), concat("\\b", pid, "\\b"));
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
  return concat(without_changing_numbers(reason, worker.pid), frame.empty() ? "" : concat(" (", frame, ")"));
}

}  // namespace ddrun::agent
