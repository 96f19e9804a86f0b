#include "ddrun/agent/events_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "worker_json.hpp"

namespace ddrun::agent {

Result<void> EventsFile::open(const std::string& path) {
  file_ = UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!file_) return fail_errno(Errc::unavailable, concat("--events: cannot open ", path), errno);
  return {};
}

void EventsFile::write_line(const std::string& json) {
  if (!file_ || json.size() < 2 || json.front() != '{') return;
  const bool empty = json == "{}";
  write(concat("{\"time\":", utc(std::chrono::system_clock::now()).dump(), empty ? "" : ",", json.substr(1), "\n"));
}

void EventsFile::write(std::string_view lines) {
  if (!file_) return;
  // The disk was full in the middle of a line: that one is lost, and not the next one too.
  if (torn_ && ::write(file_.get(), "\n", 1) == 1) torn_ = false;
  const ssize_t written = ::write(file_.get(), lines.data(), lines.size());
  if (written == static_cast<ssize_t>(lines.size())) return;
  torn_ = torn_ || (written > 0 && lines[static_cast<std::size_t>(written) - 1] != '\n');
  if (complained_) return;
  complained_ = true;
  say(Level::warning, concat("--events: a line could not be written",
                             written < 0 ? concat(": ", std::strerror(errno)) : std::string(": the disk is full")));
}

}  // namespace ddrun::agent
