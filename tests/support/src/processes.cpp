#include "ddrun/test/processes.hpp"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace ddrun::test {

bool wait_until(const std::function<bool()>& condition, std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (true) {
    if (condition()) return true;
    if (std::chrono::steady_clock::now() >= deadline) return condition();
    const timespec pause{0, 2'000'000};
    ::nanosleep(&pause, nullptr);
  }
}

namespace {

/// Faster than a stream; empty also for a missing file.
std::string slurp(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  std::string text;
  char buffer[16384];
  ssize_t n;
  while ((n = ::read(fd, buffer, sizeof buffer)) > 0) text.append(buffer, static_cast<std::size_t>(n));
  ::close(fd);
  return text;
}

std::vector<pid_t> all_processes() {
  std::vector<pid_t> found;
  DIR* dir = ::opendir("/proc");
  if (dir == nullptr) return found;
  while (const dirent* item = ::readdir(dir)) {
    if (const pid_t pid = ::atoi(item->d_name); pid > 0) found.push_back(pid);
  }
  ::closedir(dir);
  return found;
}

/// A zombie's environment reads as empty.
bool has_entry(pid_t pid, const std::string& entry) {
  const std::string environment = '\0' + slurp("/proc/" + std::to_string(pid) + "/environ");
  return environment.find('\0' + entry + '\0') != std::string::npos;
}

/// This process's environment plus `more`; the last entry of a name counts.
std::vector<std::string> environment_with(const std::vector<std::pair<std::string, std::string>>& more) {
  std::map<std::string, std::string> values;
  for (char** entry = ::environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::size_t name_end = std::min(text.find('='), text.size());
    values[text.substr(0, name_end)] = text.substr(name_end);
  }
  // ddrun shows its jobs there (--ci).
  for (const char* const service : {"GITHUB_ACTIONS", "GITLAB_CI"}) values.erase(service);
  for (const auto& [name, value] : more) values[name] = '=' + value;
  std::vector<std::string> entries;
  for (const auto& [name, value] : values) entries.push_back(name + value);
  return entries;
}

/// Null-terminated, for exec. Points into `words`.
std::vector<char*> pointers_to(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const auto& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

std::vector<pid_t> processes_with(const std::string& entry) {
  std::vector<pid_t> found;
  for (const pid_t pid : all_processes()) {
    if (has_entry(pid, entry)) found.push_back(pid);
  }
  return found;
}

bool is_stopped(pid_t pid) { return slurp("/proc/" + std::to_string(pid) + "/stat").find(") T ") != std::string::npos; }

std::vector<pid_t> descendants_of(pid_t root) {
  std::multimap<pid_t, pid_t> children;
  for (const pid_t pid : all_processes()) {
    const std::string stat = slurp("/proc/" + std::to_string(pid) + "/stat");
    char state = 'Z';
    int parent = 0;
    const std::size_t name_end = stat.rfind(')');
    if (name_end == std::string::npos || std::sscanf(stat.c_str() + name_end + 1, " %c %d", &state, &parent) != 2)
      continue;
    if (state != 'Z') children.emplace(parent, pid);
  }
  std::vector<pid_t> found;
  std::vector<pid_t> parents{root};
  for (std::size_t i = 0; i < parents.size(); ++i) {
    const auto [first, last] = children.equal_range(parents[i]);
    for (auto at = first; at != last; ++at) {
      found.push_back(at->second);
      parents.push_back(at->second);
    }
  }
  return found;
}

int Outcome::code() const { return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -WTERMSIG(wait_status); }

Run::Run(const std::vector<std::string>& argv, Options options) : input_(std::move(options.input)) {
  static std::atomic<int> counter{0};
  const std::string tag_name = "DDRUN_TEST_TAG";
  const std::string tag = std::to_string(::getpid()) + "." + std::to_string(counter++) + "." +
                          std::to_string(std::chrono::steady_clock::now().time_since_epoch().count());
  tag_ = tag_name + "=" + tag;
  int in[2], out[2], err[2];
  if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) {
    throw std::runtime_error("pipe failed");
  }
  // Prepared before fork(): another thread may hold the allocator's lock of a sanitizer, which then stays locked in the
  // child.
  auto more = options.env;
  more.emplace_back(tag_name, tag);
  const auto entries = environment_with(more);
  const auto words = pointers_to(argv), environment = pointers_to(entries);
  // Until exec the child must not run the handlers of the test framework, which would try to report and hang.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  pid_ = ::fork();
  if (pid_ != 0) ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid_ == 0) {
    // Signals ignored by our parent (nohup, a shell's &) must not be ignored by the program.
    for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
    if (options.own_group) ::setpgid(0, 0);
    if (!options.inherit_input) ::dup2(in[0], 0);
    ::dup2(out[1], 1);
    ::dup2(err[1], 2);
    ::environ = const_cast<char**>(environment.data());
    if (!options.directory.empty() && ::chdir(options.directory.c_str()) != 0) ::_exit(97);
    if (options.descriptor_limit > 0) {
      const rlimit limit{static_cast<rlim_t>(options.descriptor_limit), static_cast<rlim_t>(options.descriptor_limit)};
      ::setrlimit(RLIMIT_NOFILE, &limit);
    }
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    if (options.in_child) options.in_child();
    ::execvp(words[0], words.data());
    ::_exit(96);
  }
  ::close(in[0]);
  ::close(out[1]);
  ::close(err[1]);
  out_fd_ = out[0];
  err_fd_ = err[0];
  ::fcntl(out_fd_, F_SETFL, O_NONBLOCK);
  ::fcntl(err_fd_, F_SETFL, O_NONBLOCK);
  in_fd_ = in[1];
  ::fcntl(in_fd_, F_SETFL, O_NONBLOCK);
  feed();
}

Run::~Run() {
  if (!reaped_) ::kill(pid_, SIGKILL);
  wait_until([&] {
    for (const pid_t pid : living()) ::kill(pid, SIGKILL);
    return living().empty();
  });
  if (!reaped_) ::waitpid(pid_, nullptr, 0);
  for (const int fd : {in_fd_, out_fd_, err_fd_}) {
    if (fd >= 0) ::close(fd);
  }
}

void Run::feed() {
  if (in_fd_ < 0) return;
  // Ignore SIGPIPE when the program has ended.
  ::signal(SIGPIPE, SIG_IGN);
  while (!input_.empty()) {
    const ssize_t n = ::write(in_fd_, input_.data(), input_.size());
    if (n < 0 && errno == EAGAIN) return;
    if (n < 0) break;
    input_.erase(0, static_cast<std::size_t>(n));
  }
  ::close(std::exchange(in_fd_, -1));
}

void Run::pump(int timeout_ms) {
  pollfd fds[3] = {{out_fd_, POLLIN, 0}, {err_fd_, POLLIN, 0}, {in_fd_, POLLOUT, 0}};
  ::poll(fds, 3, timeout_ms);
  feed();
  char buffer[65536];
  for (int i = 0; i < 2; ++i) {
    int& fd = i == 0 ? out_fd_ : err_fd_;
    std::string& text = i == 0 ? outcome_.out : outcome_.err;
    while (fd >= 0) {
      const ssize_t n = ::read(fd, buffer, sizeof buffer);
      if (n > 0) {
        text.append(buffer, static_cast<std::size_t>(n));
      } else if (n == 0) {
        ::close(fd);
        fd = -1;
      } else {
        break;
      }
    }
  }
}

Outcome Run::wait(std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!reaped_ || out_fd_ >= 0 || err_fd_ >= 0) {
    pump(5);
    if (!reaped_) {
      const pid_t got = ::waitpid(pid_, &outcome_.wait_status, WNOHANG);
      reaped_ = got == pid_;
    }
    if (std::chrono::steady_clock::now() > deadline) {
      throw std::runtime_error("no end within the time limit; living: " + std::to_string(living().size()) +
                               ", the program itself: " + slurp("/proc/" + std::to_string(pid_) + "/stat") +
                               "\nstdout so far:\n" + outcome_.out + "\nstderr so far:\n" + outcome_.err);
    }
  }
  return outcome_;
}

std::string Run::out() {
  pump(0);
  return outcome_.out;
}

std::string Run::err() {
  pump(0);
  return outcome_.err;
}

bool Run::wait_for_out(const std::string& text, std::chrono::milliseconds limit) {
  return wait_until([&] { return out().find(text) != std::string::npos; }, limit);
}

bool Run::wait_for_err(const std::string& text, std::chrono::milliseconds limit) {
  return wait_until([&] { return err().find(text) != std::string::npos; }, limit);
}

void Run::signal(int number) const {
  if (!reaped_) ::kill(pid_, number);
}

bool Run::signal(pid_t pid, int number) const {
  // The pidfd prevents the pid from being reused between the check and the signal.
  const auto pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (pidfd < 0 && errno == ESRCH) return false;
  const bool ours = has_entry(pid, tag_);
  if (ours && pidfd >= 0) ::syscall(SYS_pidfd_send_signal, pidfd, number, nullptr, 0);
  if (ours && pidfd < 0) ::kill(pid, number);
  if (pidfd >= 0) ::close(pidfd);
  return ours;
}

std::vector<pid_t> Run::living() const { return processes_with(tag_); }

bool Run::all_gone(std::chrono::milliseconds limit) const {
  // Twice: during exec a process has no environment for a moment.
  return wait_until([&] { return living().empty() && living().empty(); }, limit);
}

}  // namespace ddrun::test
