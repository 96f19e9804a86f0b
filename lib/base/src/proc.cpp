#include "ddrun/base/proc.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cstdio>

#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun {

std::optional<std::string> read_small_file(const std::string& path, std::size_t limit) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return std::nullopt;
  std::string text;
  char buffer[4096];
  while (text.size() < limit) {
    const ssize_t size = ::read(fd.get(), buffer, sizeof buffer);
    if (size < 0) return std::nullopt;
    if (size == 0) break;
    text.append(buffer, static_cast<std::size_t>(size));
  }
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ' || text.back() == '\0')) text.pop_back();
  return text;
}

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  DIR* dir = ::opendir(directory.c_str());
  if (dir == nullptr) return names;
  while (const dirent* entry = ::readdir(dir)) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  ::closedir(dir);
  return names;
}

std::optional<std::int64_t> read_number(const std::string& path) {
  const auto text = read_small_file(path);
  return text ? whole_number<std::int64_t>(*text) : std::nullopt;
}

std::optional<std::int64_t> read_keyed_number(const std::string& path, std::string_view key) {
  const auto text = read_small_file(path);
  if (!text) return std::nullopt;
  for (const std::string& line : split(*text, '\n')) {
    const std::size_t blank = line.find(' ');
    if (blank == key.size() && line.starts_with(key))
      return whole_number<std::int64_t>(trim(std::string_view(line).substr(blank)));
  }
  return std::nullopt;
}

std::optional<ShmSpace> shm_space() {
  struct statfs shm {};
  if (::statfs("/dev/shm", &shm) != 0 || shm.f_type != TMPFS_MAGIC || shm.f_blocks == 0) return std::nullopt;
  const auto block = static_cast<std::uint64_t>(shm.f_bsize);
  return ShmSpace{shm.f_blocks * block, (shm.f_blocks - shm.f_bfree) * block};
}

std::optional<ProcessStat> read_process_stat(pid_t pid) {
  const std::string text = read_small_file(concat("/proc/", pid, "/stat")).value_or("");
  // The name may contain blanks and brackets: parse after its last ')'.
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  ProcessStat stat;
  unsigned long long start_time = 0;
  if (std::sscanf(text.c_str() + name_end + 1,
                  " %c %d %d %d %*d %d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &stat.state,
                  &stat.parent, &stat.group, &stat.session, &stat.foreground, &start_time) != 6) {
    return std::nullopt;
  }
  stat.start_time = start_time;
  return stat;
}

std::string own_program() {
  std::array<char, PATH_MAX> path{};
  const ssize_t size = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  return size > 0 ? std::string(path.data(), static_cast<std::size_t>(size)) : std::string();
}

std::string find_in_path(std::string_view name) {
  const char* const path = ::getenv("PATH");
  for (const std::string& directory : split(path != nullptr ? path : "/usr/bin:/bin", ':')) {
    std::string file = concat(directory.empty() ? "." : directory, "/", name);
    if (::access(file.c_str(), X_OK) == 0) return file;
  }
  return {};
}

}  // namespace ddrun
