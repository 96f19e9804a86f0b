// Runs a command on a file server that does not answer: execve() of a program with $DDRUN_TEST_HELD_PATH in its path
// creates the file $DDRUN_TEST_HELD_UNTIL.held and hangs until the file $DDRUN_TEST_HELD_UNTIL exists, but for the
// first $DDRUN_TEST_HELD_AFTER of them. A process beside the command answers the kernel (seccomp_unotify(2)).
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr int no_listener = 77;  // the kernel has none, or this process is inside a filter with one

/// Passes `fd` on to the process at the other end or, if it is -1, receives one. Returns it; -1 at end-of-file.
int pass_fd(int socket, int fd) {
  const bool sends = fd >= 0;
  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  if (sends) std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  const ssize_t moved = sends ? ::sendmsg(socket, &message, 0) : ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (moved <= 0) return -1;
  if (!sends) std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return fd;
}

std::string text_of(pid_t pid, unsigned long long address) {
  const int memory = ::open(("/proc/" + std::to_string(pid) + "/mem").c_str(), O_RDONLY | O_CLOEXEC);
  char text[512] = {};
  if (::pread(memory, text, sizeof text - 1, static_cast<off_t>(address)) < 0) text[0] = '\0';
  ::close(memory);
  return text;
}

/// Answers until no process of the command is left.
void serve(int listener) {
  const std::string path = std::getenv("DDRUN_TEST_HELD_PATH");
  const std::string until = std::getenv("DDRUN_TEST_HELD_UNTIL");
  const char* const passed = std::getenv("DDRUN_TEST_HELD_AFTER");
  int to_pass = passed != nullptr ? std::atoi(passed) : 0;
  std::vector<unsigned long long> held;
  const auto answer = [&](unsigned long long id) {
    seccomp_notif_resp response{};
    response.id = id;
    response.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    ::ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &response);
  };
  while (true) {
    pollfd ready{listener, POLLIN, 0};
    ::poll(&ready, 1, 5);
    if ((ready.revents & POLLHUP) != 0) return;
    if (::access(until.c_str(), F_OK) == 0) {
      for (const auto id : held) answer(id);
      held.clear();
    }
    seccomp_notif call{};
    if ((ready.revents & POLLIN) == 0 || ::ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call) != 0) continue;
    const std::string program = text_of(static_cast<pid_t>(call.pid), call.data.args[0]);
    const bool is_meant = program.find(path) != std::string::npos && ::access(until.c_str(), F_OK) != 0;
    if (!is_meant || to_pass-- > 0) {
      answer(call.id);
      continue;
    }
    held.push_back(call.id);
    ::close(::open((until + ".held").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  }
}

}  // namespace

int main(int /*argc*/, char** argv) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return 1;
  const pid_t between = ::fork();
  if (between == 0) {
    if (::fork() != 0) ::_exit(0);  // so that the command has no child
    ::setsid();
    for (int fd = 0; fd < 3; ++fd) ::close(fd);
    ::close(ends[0]);
    const int listener = pass_fd(ends[1], -1);
    if (listener >= 0) serve(listener);
    ::_exit(0);
  }
  ::waitpid(between, nullptr, 0);
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_execve, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program{sizeof filter / sizeof *filter, filter};
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  const long listener = ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
  if (listener < 0) {
    std::perror("no program can be held here (seccomp)");
    return no_listener;
  }
  pass_fd(ends[0], static_cast<int>(listener));
  ::close(static_cast<int>(listener));
  ::close(ends[0]);
  ::close(ends[1]);
  ::execvp(argv[1], argv + 1);
  return 127;
}
