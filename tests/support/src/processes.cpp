#include "ddrun/test/processes.hpp"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

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

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void write_file(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

std::vector<pid_t> processes_with(const std::string& entry) {
  std::vector<pid_t> found;
  DIR* dir = ::opendir("/proc");
  if (dir == nullptr) return found;
  const std::string wanted = '\0' + entry + '\0';
  while (const dirent* item = ::readdir(dir)) {
    const pid_t pid = ::atoi(item->d_name);
    if (pid <= 0) continue;
    const std::string base = std::string("/proc/") + item->d_name;
    // A zombie's environment reads as empty.
    if (('\0' + read_file(base + "/environ")).find(wanted) != std::string::npos) found.push_back(pid);
  }
  ::closedir(dir);
  return found;
}

TemporaryDirectory::TemporaryDirectory() {
  char name[] = "/tmp/ddrun-test-XXXXXX";
  if (::mkdtemp(name) == nullptr) throw std::runtime_error("mkdtemp failed");
  path_ = name;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ec;
  std::filesystem::remove_all(path_, ec);
}

int Outcome::code() const { return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -WTERMSIG(wait_status); }

Run::Run(const std::vector<std::string>& argv, Options options) {
  static std::atomic<int> counter{0};
  tag_ = "DDRUN_TEST_TAG=" + std::to_string(::getpid()) + "." + std::to_string(counter++) + "." +
         std::to_string(std::chrono::steady_clock::now().time_since_epoch().count());
  int in[2], out[2], err[2];
  if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) {
    throw std::runtime_error("pipe failed");
  }
  std::vector<char*> words;
  for (const auto& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ == 0) {
    if (options.own_group) ::setpgid(0, 0);
    if (!options.inherit_input) ::dup2(in[0], 0);
    ::dup2(out[1], 1);
    ::dup2(err[1], 2);
    ::putenv(const_cast<char*>(tag_.c_str()));
    for (const auto& [name, value] : options.env) ::setenv(name.c_str(), value.c_str(), 1);
    if (!options.directory.empty() && ::chdir(options.directory.c_str()) != 0) ::_exit(97);
    if (options.descriptor_limit > 0) {
      const rlimit limit{static_cast<rlim_t>(options.descriptor_limit), static_cast<rlim_t>(options.descriptor_limit)};
      ::setrlimit(RLIMIT_NOFILE, &limit);
    }
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
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
  if (!options.input.empty()) {
    ::signal(SIGPIPE, SIG_IGN);
    [[maybe_unused]] const ssize_t n = ::write(in[1], options.input.data(), options.input.size());
  }
  ::close(in[1]);
}

Run::~Run() {
  if (!reaped_) ::kill(pid_, SIGKILL);
  wait_until([&] {
    for (const pid_t pid : living()) ::kill(pid, SIGKILL);
    return living().empty();
  });
  if (!reaped_) ::waitpid(pid_, nullptr, 0);
  if (out_fd_ >= 0) ::close(out_fd_);
  if (err_fd_ >= 0) ::close(err_fd_);
}

void Run::pump(int timeout_ms) {
  pollfd fds[2] = {{out_fd_, POLLIN, 0}, {err_fd_, POLLIN, 0}};
  ::poll(fds, 2, timeout_ms);
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

void Run::signal(int number) const { ::kill(pid_, number); }

std::vector<pid_t> Run::living() const { return processes_with(tag_); }

bool Run::all_gone(std::chrono::milliseconds limit) const {
  return wait_until([&] { return living().empty(); }, limit);
}

}  // namespace ddrun::test
