// A worker for tests: carries out the verbs on its command line, one after the other.
//
//   exit N            end with this code               signal NAME|N     die of this signal
//   pause             sleep until a signal comes       stop              SIGSTOP itself
//   ignore NAME       ignore a signal                  on NAME N         exit with N when this signal comes
//   tell NAME         print "got NAME" when it comes and go on
//   heard N           wait until N signals have come in all for which there is a `tell` (also before this verb)
//   print TEXT        a line on stdout                 error TEXT        a line on stderr
//   stdio TEXT        a line on stdout through the C library's buffer
//   raw TEXT          the same without the newline     lines N           N lines of 100 bytes
//   env NAME          print NAME=value
//   facts             print pid, parent, group, session, signal mask, descriptors, CPUs …
//   stdin             print what stdin has until its end        close-out   close stdout and stderr
//   child VERBS… ;    a child process does these, the parent goes on
//   stray VERBS… ;    the same, after a double fork and setsid, so that it is an orphan
//   remove DIR        an empty directory
//   touch FILE        make it                          await FILE        wait until it is there
//   rank N VERB… ;    only in this rank                attempt N VERB… ; only in this attempt
//   fail-file FILE    write PyTorch's error.json to $TORCHELASTIC_ERROR_FILE with this message
//   spin N            use N milliseconds of CPU        memory N          touch N MiB
//   count KEY         add 1 to a number in the store at MASTER_ADDR:MASTER_PORT and print KEY=number
//   connect           connect to the store and keep the connection
//   cut-off N         have the store cut off N clients of this worker, for a sum with a text
//   report FILE       append "rank attempt time-in-ns" (CLOCK_MONOTONIC) to FILE

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>

#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace {

using Words = std::vector<std::string>;
volatile sig_atomic_t exit_codes[NSIG];
volatile sig_atomic_t signal_count = 0;

int signal_of(const std::string& name) {
  if (int number = ::atoi(name.c_str()); number > 0) return number;
  for (int number = 1; number < NSIG; ++number) {
    const char* abbreviation = ::sigabbrev_np(number);
    if (abbreviation != nullptr && name == abbreviation) return number;
  }
  std::fprintf(stderr, "test worker: no signal %s\n", name.c_str());
  ::_exit(99);
}

void exit_on(int signal) { ::_exit(exit_codes[signal]); }

void print_signal(int signal) {
  signal_count = signal_count + 1;
  char line[32] = "got ";
  const char* abbreviation = ::sigabbrev_np(signal);
  ::strncat(line, abbreviation != nullptr ? abbreviation : "?", 20);
  ::strcat(line, "\n");
  [[maybe_unused]] const ssize_t n = ::write(1, line, ::strlen(line));
}

void write_out(int fd, const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno != EINTR) ::_exit(98);
    if (n > 0) done += static_cast<std::size_t>(n);
  }
}

void print_facts() {
  sigset_t mask;
  ::sigprocmask(SIG_SETMASK, nullptr, &mask);
  std::string blocked, ignored, cpus, fds;
  for (int signal = 1; signal < NSIG; ++signal) {
    if (::sigismember(&mask, signal) == 1) blocked += " " + std::to_string(signal);
    struct sigaction action {};
    if (::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) {
      ignored += " " + std::to_string(signal);
    }
  }
  cpu_set_t set;
  ::sched_getaffinity(0, sizeof set, &set);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus += " " + std::to_string(cpu);
  }
  for (int fd = 0; fd < 1024; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) fds += " " + std::to_string(fd);
  }
  char directory[4096] = "";
  if (::getcwd(directory, sizeof directory) == nullptr) ::strcpy(directory, "?");
  char text[8192];
  ::snprintf(text, sizeof text,
             "pid %d\nparent %d\ngroup %d\nsession %d\nblocked%s\nignored%s\nfds%s\ncpus%s\ncwd %s\n", ::getpid(),
             ::getppid(), ::getpgrp(), ::getsid(0), blocked.c_str(), ignored.c_str(), fds.c_str(), cpus.c_str(),
             directory);
  write_out(1, text);
}

void await_file(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash);
  const int watch = ::inotify_init1(IN_CLOEXEC);
  ::inotify_add_watch(watch, directory.c_str(), IN_CREATE | IN_MOVED_TO);
  while (::access(path.c_str(), F_OK) != 0) {
    pollfd fd{watch, POLLIN, 0};
    if (::poll(&fd, 1, 1000) > 0) {
      char buffer[4096];
      [[maybe_unused]] const ssize_t n = ::read(watch, buffer, sizeof buffer);
    }
  }
  ::close(watch);
}

std::string number(uint64_t value) { return {reinterpret_cast<const char*>(&value), sizeof value}; }
std::string greeting() { return {"\x00\xce\xf7\x85\x3c", 5}; }

/// A raw connection to the store, without ddrun's library. On the loopback the address may be IPv6.
int connect_to_store() {
  const char* address = ::getenv("MASTER_ADDR");
  const char* port = ::getenv("MASTER_PORT");
  const auto number = htons(static_cast<uint16_t>(::atoi(port != nullptr ? port : "0")));
  sockaddr_in v4{AF_INET, number, {}, {}};
  sockaddr_in6 v6{AF_INET6, number, 0, {}, 0};
  const bool is_v6 = address != nullptr && ::inet_pton(AF_INET6, address, &v6.sin6_addr) == 1;
  const auto* to = is_v6 ? reinterpret_cast<sockaddr*>(&v6) : reinterpret_cast<sockaddr*>(&v4);
  const int fd = ::socket(to->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (address == nullptr || (!is_v6 && ::inet_pton(AF_INET, address, &v4.sin_addr) != 1) ||
      ::connect(fd, to, is_v6 ? sizeof v6 : sizeof v4) != 0) {
    ::fprintf(stderr, "test worker: cannot reach the store at %s, port %s: %s\n", address != nullptr ? address : "?",
              port != nullptr ? port : "?", ::strerror(errno));
    ::_exit(97);
  }
  return fd;
}

void count_in_store(const std::string& key) {
  const int fd = connect_to_store();
  write_out(fd, greeting() + "\x04" + number(key.size()) + key + number(1));
  int64_t sum = 0;
  if (::recv(fd, &sum, sizeof sum, MSG_WAITALL) != sizeof sum) ::_exit(97);
  ::close(fd);
  write_out(1, key + "=" + std::to_string(sum) + "\n");
}

void be_cut_off() {
  const int fd = connect_to_store();
  const std::string key = number(3) + "key";
  write_out(fd, greeting() + "\x01" + key + number(4) + "text" + "\x04" + key + number(1));
  char byte = 0;
  if (::recv(fd, &byte, 1, 0) > 0) ::_exit(97);
  ::close(fd);
}

/// The words up to the matching ';', taken out of `words` from `at` on.
Words block(const Words& words, std::size_t& at) {
  Words inner;
  int depth = 1;
  for (; at < words.size(); ++at) {
    const std::string& word = words[at];
    if (word == "child" || word == "stray" || word == "rank" || word == "attempt") ++depth;
    if (word == ";" && --depth == 0) {
      ++at;
      break;
    }
    inner.push_back(word);
  }
  return inner;
}

bool variable_is(const char* name, const std::string& value) {
  const char* has = ::getenv(name);
  return has != nullptr && value == has;
}

void run(const Words& words) {
  std::size_t at = 0;
  const auto next = [&]() -> std::string { return at < words.size() ? words[at++] : std::string(); };
  while (at < words.size()) {
    const std::string verb = next();
    if (verb == "exit") ::_exit(::atoi(next().c_str()));
    else if (verb == "signal") {
      const int signal = signal_of(next());
      ::signal(signal, SIG_DFL);
      ::kill(::getpid(), signal);
    } else if (verb == "pause") ::pause();
    else if (verb == "heard") {
      // Signals are blocked between the check and sigsuspend().
      sigset_t all, before;
      ::sigfillset(&all);
      ::sigprocmask(SIG_SETMASK, &all, &before);
      for (const int wanted = ::atoi(next().c_str()); signal_count < wanted;) ::sigsuspend(&before);
      ::sigprocmask(SIG_SETMASK, &before, nullptr);
    } else if (verb == "forever")
      while (true) ::pause();
    else if (verb == "stop") ::raise(SIGSTOP);
    else if (verb == "ignore") ::signal(signal_of(next()), SIG_IGN);
    else if (verb == "on") {
      const int signal = signal_of(next());
      exit_codes[signal] = ::atoi(next().c_str());
      ::signal(signal, exit_on);
    } else if (verb == "tell") ::signal(signal_of(next()), print_signal);
    else if (verb == "print") write_out(1, next() + "\n");
    else if (verb == "stdio") std::printf("%s\n", next().c_str());
    else if (verb == "raw") write_out(1, next());
    else if (verb == "error") write_out(2, next() + "\n");
    else if (verb == "lines") {
      const long count = ::atol(next().c_str());
      const char* rank = ::getenv("RANK");
      for (long i = 0; i < count; ++i) {
        std::string line = "line " + std::to_string(i) + " of rank " + (rank != nullptr ? rank : "?") + " ";
        line.resize(99, 'x');
        write_out(1, line + "\n");
      }
    } else if (verb == "env") {
      const std::string name = next();
      const char* value = ::getenv(name.c_str());
      write_out(1, name + "=" + (value != nullptr ? value : "(unset)") + "\n");
    } else if (verb == "facts") print_facts();
    else if (verb == "stdin") {
      char buffer[65536];
      ssize_t n;
      while ((n = ::read(0, buffer, sizeof buffer)) > 0) write_out(1, std::string(buffer, static_cast<std::size_t>(n)));
    } else if (verb == "close-out") {
      ::close(1);
      ::close(2);
    } else if (verb == "child" || verb == "stray") {
      const Words inner = block(words, at);
      if (::fork() == 0) {
        if (verb == "stray") {
          ::setsid();
          if (::fork() != 0) ::_exit(0);
          ::setsid();
        }
        run(inner);
        ::_exit(0);
      }
    } else if (verb == "touch") {
      const int fd = ::open(next().c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
      if (fd >= 0) ::close(fd);
    } else if (verb == "remove") ::rmdir(next().c_str());
    else if (verb == "await") await_file(next());
    else if (verb == "rank" || verb == "attempt") {
      const bool mine = variable_is(verb == "rank" ? "RANK" : "TORCHELASTIC_RESTART_COUNT", next());
      const Words inner = block(words, at);
      if (mine) run(inner);
    } else if (verb == "fail-file") {
      const std::string message = next();
      if (const char* path = ::getenv("TORCHELASTIC_ERROR_FILE")) {
        if (FILE* file = std::fopen(path, "w")) {
          std::fprintf(file,
                       "{\"message\": {\"message\": \"%s\", \"extraInfo\": {\"py_callstack\": "
                       "\"Traceback (most recent call last):\\n  boom\", \"timestamp\": \"%lld\"}}}",
                       message.c_str(), static_cast<long long>(::time(nullptr)));
          std::fclose(file);
        }
      }
    } else if (verb == "spin") {
      const long milliseconds = ::atol(next().c_str());
      while (::clock() < milliseconds * (CLOCKS_PER_SEC / 1000)) {
      }
    } else if (verb == "memory") {
      const std::size_t bytes = static_cast<std::size_t>(::atol(next().c_str())) << 20;
      char* memory = static_cast<char*>(::malloc(bytes));
      for (std::size_t i = 0; i < bytes; i += 4096) memory[i] = 1;
    } else if (verb == "connect") (void)connect_to_store();
    else if (verb == "count") count_in_store(next());
    else if (verb == "cut-off") {
      for (long left = ::atol(next().c_str()); left > 0; --left) be_cut_off();
    } else if (verb == "report") {
      timespec now{};
      ::clock_gettime(CLOCK_MONOTONIC, &now);
      const int fd = ::open(next().c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0644);
      const char* rank = ::getenv("RANK");
      const char* attempt = ::getenv("TORCHELASTIC_RESTART_COUNT");
      write_out(fd, std::string(rank != nullptr ? rank : "?") + " " + (attempt != nullptr ? attempt : "?") + " " +
                        std::to_string(now.tv_sec * 1'000'000'000LL + now.tv_nsec) + "\n");
      ::close(fd);
    } else {
      std::fprintf(stderr, "test worker: no verb '%s'\n", verb.c_str());
      ::_exit(99);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  run(Words(argv + 1, argv + argc));
  return 0;
}
