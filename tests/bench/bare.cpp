// A minimal launcher: starts N workers with vfork and exec and waits for them, without pipes, sessions, store or
// supervision. Its time is the kernel's, a lower bound for every single-threaded launcher on the same machine.
//
//   bench_bare N PROGRAM [ARGUMENT…]
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  for (long left = ::atol(argv[1]); left > 0; --left) {
    const pid_t pid = ::vfork();
    if (pid < 0) return 1;
    if (pid == 0) {
      ::execve(argv[2], argv + 2, environ);
      ::_exit(127);
    }
  }
  int code = 0;
  int status = 0;
  while (::wait(&status) > 0) code = status == 0 ? code : 1;
  return code;
}
