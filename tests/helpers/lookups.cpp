// LD_PRELOAD library that records each name or address lookup and fails it.
#include <fcntl.h>
#include <netdb.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace {

void note(const char* function, const char* what) {
  const char* path = std::getenv("DDRUN_TEST_LOOKUPS_FILE");
  if (path == nullptr) return;
  const std::string line = std::string(function) + " " + (what != nullptr ? what : "?") + "\n";
  const int fd = ::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) return;
  (void)!::write(fd, line.data(), line.size());
  ::close(fd);
}

}  // namespace

extern "C" {
int getaddrinfo(const char* node, const char*, const addrinfo*, addrinfo**) {
  note("getaddrinfo", node);
  return EAI_NONAME;
}
int getnameinfo(const sockaddr*, socklen_t, char*, socklen_t, char*, socklen_t, int) {
  note("getnameinfo", nullptr);
  return EAI_NONAME;
}
hostent* gethostbyname(const char* name) {
  note("gethostbyname", name);
  return nullptr;
}
hostent* gethostbyaddr(const void*, socklen_t, int) {
  note("gethostbyaddr", nullptr);
  return nullptr;
}
}
