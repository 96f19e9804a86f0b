// LD_PRELOAD library that simulates a hanging disk. A write of ddrun, not of its workers, to a file with
// $DDRUN_TEST_HELD_PATH in its path creates that name plus ".held" and blocks until the file $DDRUN_TEST_HELD_UNTIL
// exists. The same for reads with $DDRUN_TEST_HELD_READS.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace {

std::string target_of(const std::string& link) {
  char target[4096];
  const ssize_t size = ::readlink(link.c_str(), target, sizeof target);
  return {target, static_cast<std::size_t>(size > 0 ? size : 0)};
}

void hold(int fd, const char* variable = "DDRUN_TEST_HELD_PATH") {
  const char* path = std::getenv(variable);
  const char* until = std::getenv("DDRUN_TEST_HELD_UNTIL");
  if (path == nullptr || until == nullptr) return;
  if (target_of("/proc/self/fd/" + std::to_string(fd)).find(path) == std::string::npos) return;
  const std::string program = target_of("/proc/self/exe");
  if (program.size() < 6 || program.compare(program.size() - 6, 6, "/ddrun") != 0) return;
  ::close(::open((std::string(path) + ".held").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  while (::access(until, F_OK) != 0) {
    const timespec moment{0, 5'000'000};
    ::nanosleep(&moment, nullptr);
  }
}

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {
ssize_t read(int fd, void* bytes, size_t size) {
  static const auto real = next<ssize_t (*)(int, void*, size_t)>("read");
  hold(fd, "DDRUN_TEST_HELD_READS");
  return real(fd, bytes, size);
}
ssize_t write(int fd, const void* bytes, size_t size) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t)>("write");
  hold(fd);
  return real(fd, bytes, size);
}
ssize_t writev(int fd, const iovec* parts, int count) {
  static const auto real = next<ssize_t (*)(int, const iovec*, int)>("writev");
  hold(fd);
  return real(fd, parts, count);
}
ssize_t pwrite(int fd, const void* bytes, size_t size, off_t at) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  hold(fd);
  return real(fd, bytes, size, at);
}
ssize_t splice(int in, off64_t* in_at, int out, off64_t* out_at, size_t size, unsigned flags) {
  static const auto real = next<ssize_t (*)(int, off64_t*, int, off64_t*, size_t, unsigned)>("splice");
  hold(out);
  return real(in, in_at, out, out_at, size, flags);
}
}
