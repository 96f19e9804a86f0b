#include "death_reason.hpp"

#include <glob.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/topology/cgroup.hpp"

namespace ddrun::agent {

namespace {

using topology::SystemRoots;

/// Signals that another process sends, as opposed to those that the kernel raises for a fault.
bool is_usually_sent(int signal) {
  return signal == SIGKILL || signal == SIGTERM || signal == SIGINT || signal == SIGHUP || signal == SIGQUIT;
}

std::string piped_core(std::string_view command, pid_t pid) {
  command = trim(command);
  const std::string program(command.substr(0, command.find(' ')));
  if (program.ends_with("/systemd-coredump")) return concat("core dump: coredumpctl info ", pid);
  if (program.ends_with("/apport")) return "core dump: with apport, in /var/crash";
  return concat("core dump: given to ", program);
}

/// core(5)'s pattern as one for glob(3): known specifiers are filled in, the others become '*'.
std::string core_glob(std::string_view pattern, const DeadWorker& worker, bool append_pid) {
  std::string result;
  bool has_pid = false;
  const auto add = [&](char c) {
    if (std::string_view("\\*?[]").find(c) != std::string_view::npos) result += '\\';
    result += c;
  };
  if (!pattern.starts_with('/')) {
    for (const char c : worker.directory + "/") add(c);
  }
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%') {
      add(pattern[i]);
      continue;
    }
    if (++i == pattern.size()) break;  // a lone % at the end is dropped
    if (pattern[i] == '%') {
      add('%');
    } else if (pattern[i] == 'p') {
      has_pid = true;
      result += std::to_string(worker.pid);
    } else if (pattern[i] == 's') {
      result += std::to_string(std::get<Signaled>(worker.status).signal);
    } else if (std::isalpha(static_cast<unsigned char>(pattern[i])) != 0) {
      result += '*';
    }
  }
  if (append_pid && !has_pid) result += concat(".", worker.pid);
  return result;
}

std::string newest_match(const std::string& pattern, std::chrono::system_clock::time_point not_before) {
  const auto earliest = std::chrono::system_clock::to_time_t(not_before);
  std::string newest;
  time_t newest_time = 0;
  glob_t found{};
  if (::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0) {
    for (std::size_t i = 0; i < found.gl_pathc; ++i) {
      struct stat info {};
      if (::stat(found.gl_pathv[i], &info) != 0 || !S_ISREG(info.st_mode) || info.st_mtime < earliest) continue;
      if (!newest.empty() && info.st_mtime <= newest_time) continue;
      newest = found.gl_pathv[i];
      newest_time = info.st_mtime;
    }
  }
  ::globfree(&found);
  return newest;
}

}  // namespace

std::string core_dump_location(const DeadWorker& worker, const SystemRoots& roots) {
  const auto* signaled = std::get_if<Signaled>(&worker.status);
  if (signaled == nullptr || !signaled->core_dumped) return {};
  const auto pattern = read_small_file(roots.proc + "/sys/kernel/core_pattern");
  if (!pattern || pattern->empty()) return {};
  if (pattern->front() == '|') return piped_core(std::string_view(*pattern).substr(1), worker.pid);
  const bool append_pid = read_small_file(roots.proc + "/sys/kernel/core_uses_pid").value_or("0") != "0";
  const std::string file = newest_match(core_glob(*pattern, worker, append_pid), worker.started);
  return file.empty() ? std::string() : concat("core file: ", file);
}

DeathReasons::DeathReasons(SystemRoots roots) : roots_(std::move(roots)) {}

void DeathReasons::begin_attempt(int workers) {
  baseline_ = count_kills();
  explained_kills_ = 0;
  workers_ = std::max(workers, 1);
}

/// The OOM killer takes the largest process, hardly one that never had an eighth of its share of the limit.
bool DeathReasons::is_far_below_limit(long max_rss_kib) const {
  const auto limit = topology::memory_limit(roots_);
  const std::int64_t kib = limit ? limit->bytes / 1024 : ::sysconf(_SC_PHYS_PAGES) * (::sysconf(_SC_PAGESIZE) / 1024);
  return max_rss_kib > 0 && kib > 0 && max_rss_kib < kib / workers_ / 8;
}

std::optional<DeathReasons::KillCount> DeathReasons::count_kills() const {
  if (const auto group = topology::own_cgroup("memory", roots_)) {
    // The kernel counts a kill before it sends the signal.
    const std::string file = group->directory + (group->v2 ? "/memory.events" : "/memory.oom_control");
    if (const auto kills = read_keyed_number(file, "oom_kill")) return KillCount{*kills, true};
  }
  // The root cgroup has no counter.
  if (const auto kills = read_keyed_number(roots_.proc + "/vmstat", "oom_kill")) return KillCount{*kills, false};
  return std::nullopt;
}

std::string DeathReasons::out_of_memory(bool whole_machine) const {
  const auto limit = topology::memory_limit(roots_);
  if (!whole_machine && limit) {
    return concat("(memory limit of cgroup ", limit->cgroup, ": ",
                  format_size(static_cast<std::uint64_t>(limit->bytes)), ")");
  }
  return "(the machine itself was short of memory)";
}

std::string DeathReasons::explain(const DeadWorker& worker) {
  const auto now = count_kills();
  const bool comparable = now && baseline_ && now->of_our_cgroup == baseline_->of_our_cgroup;
  const bool oom = comparable && now->kills - baseline_->kills > explained_kills_;
  const auto* signaled = std::get_if<Signaled>(&worker.status);
  const auto ambiguous = [&](std::string text) {
    baseline_ = now;
    explained_kills_ = 0;
    return text;
  };

  if (signaled != nullptr && signaled->signal == SIGKILL) {
    if (oom && is_far_below_limit(worker.max_rss_kib)) {
      return ambiguous(
          concat("killed from outside ddrun, or perhaps out of memory: the kernel's OOM killer was at work ",
                 out_of_memory(!now->of_our_cgroup), ", but this worker was small"));
    }
    if (oom) {
      ++explained_kills_;
      return concat(now->of_our_cgroup ? "out of memory" : "probably out of memory", ": the kernel's OOM killer ended ",
                    now->of_our_cgroup ? "it " : "a process ", out_of_memory(!now->of_our_cgroup));
    }
    return comparable ? "killed from outside ddrun; the kernel's OOM killer was not at work"
                      : "killed from outside ddrun";
  }
  if (signaled != nullptr && is_usually_sent(signaled->signal)) return "signal sent from outside ddrun";
  if (std::string core = core_dump_location(worker, roots_); !core.empty()) return core;
  if (oom && now->of_our_cgroup && worker.status != ExitStatus(Exited{0})) {
    // For example a data loader's process, whose parent then fails with an exit code.
    return ambiguous(concat("perhaps out of memory: the kernel's OOM killer ended another process of this job ",
                            out_of_memory(false)));
  }
  return {};
}

std::string describe_shm(const ExitStatus& status, const std::vector<logs::TailLine>& last_lines) {
  const auto* signaled = std::get_if<Signaled>(&status);
  const bool asks =
      (signaled != nullptr && signaled->signal == SIGBUS) ||
      std::any_of(last_lines.begin(), last_lines.end(), [](const logs::TailLine& line) {
        const auto has = [&](std::string_view words) { return line.text.find(words) != std::string::npos; };
        return has("unhandled system error") || has("No space left") || has("Bus error");
      });
  const auto shm = asks ? shm_space() : std::nullopt;
  return shm ? concat("/dev/shm: ", format_size(shm->used), " of ", format_size(shm->size), " are used")
             : std::string();
}

}  // namespace ddrun::agent
