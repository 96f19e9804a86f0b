// A rank that only speaks PMI-1, as MPICH's do in MPI_Init: it puts a key, waits in a barrier and reads those of all
// ranks. By PMI_PORT and PMI_ID, or on the descriptor PMI_FD.

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

std::FILE *in, *out;

std::string line() {
  char text[2048];
  if (std::fgets(text, sizeof text, in) == nullptr) std::exit(9);
  return text;
}

std::string ask(const std::string& command) {
  std::fputs((command + "\n").c_str(), out);
  std::fflush(out);
  return line();
}

std::string word(const std::string& answer, const std::string& name) {
  const auto at = answer.find(" " + name + "=");
  if (at == std::string::npos) std::exit(8);
  const auto begin = at + name.size() + 2;
  return answer.substr(begin, answer.find_first_of(" \n", begin) - begin);
}

int connect_to(const std::string& address) {
  const auto colon = address.find(':');
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(colon + 1))));
  inet_pton(AF_INET, address.substr(0, colon).c_str(), &at.sin_addr);
  const int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
  if (connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0) std::exit(7);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

}  // namespace

int main() {
  const char* const port = std::getenv("PMI_PORT");
  const int fd = port != nullptr ? connect_to(port) : std::atoi(std::getenv("PMI_FD"));
  in = fdopen(fd, "r");
  out = fdopen(dup(fd), "w");
  if (port != nullptr) {
    ask(std::string("cmd=initack pmiid=") + std::getenv("PMI_ID"));
    for (int set = 0; set < 3; ++set) line();
  }
  const std::string rank = std::getenv("PMI_RANK");
  const int size = std::atoi(std::getenv("PMI_SIZE"));
  ask("cmd=init pmi_version=1 pmi_subversion=1");
  ask("cmd=get_maxes");
  ask("cmd=get_appnum");
  const std::string space = "kvsname=" + word(ask("cmd=get_my_kvsname"), "kvsname");
  ask("cmd=get " + space + " key=PMI_process_mapping");
  ask("cmd=put " + space + " key=card-" + rank + " value=" + rank);
  ask("cmd=barrier_in");
  for (int other = 0; other < size; ++other) {
    const std::string number = std::to_string(other);
    if (word(ask("cmd=get " + space + " key=card-" + number), "value") != number) return 1;
  }
  ask("cmd=barrier_in");
  ask("cmd=finalize");
  std::printf("size %d\n", size);
}
