// A worker in C++ whose rank 2 hangs as the first argument says, while the others wait for it on sockets.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#define NOINLINE __attribute__((noinline))

namespace {

volatile bool goes_on = true;  // else the compiler may leave the loop out
std::vector<int> peers;

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

void connect_ranks(int rank, int world_size) {
  const std::string path = std::string(std::getenv("HANG_FOLDER")) + "/hub";
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  if (rank == 0) {
    if (::bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(fd, 64) != 0) fail("listen");
    ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
    std::ofstream(path + ".new") << ntohs(address.sin_port);
    if (std::rename((path + ".new").c_str(), path.c_str()) != 0) fail("rename");
    for (int i = 1; i < world_size; ++i) peers.push_back(::accept(fd, nullptr, nullptr));
  } else {
    int port = 0;
    while (!(std::ifstream(path) >> port)) ::usleep(10'000);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), size) != 0) fail("connect");
    peers.push_back(fd);
  }
}

NOINLINE void send_to_peers() {
  const char byte = 'x';
  for (const int peer : peers) {
    if (::send(peer, &byte, 1, 0) != 1) fail("send");
  }
}

NOINLINE void receive_from_peers() {
  char byte = 0;
  for (const int peer : peers) {
    if (::recv(peer, &byte, 1, 0) != 1) fail("recv");
  }
}

void no_tail_call() { std::atomic_signal_fence(std::memory_order_seq_cst); }

}  // namespace

namespace train {

/// Rank 0 answers when all others have sent a byte.
NOINLINE void barrier(int rank) {
  if (rank != 0) send_to_peers();
  receive_from_peers();
  if (rank == 0) send_to_peers();
  no_tail_call();
}

/// The others answer rank 0.
NOINLINE void all_reduce(int rank) {
  if (rank == 0) send_to_peers();
  receive_from_peers();
  if (rank != 0) send_to_peers();
  no_tail_call();
}

NOINLINE void stuck_in_loop() {
  while (goes_on) {
  }
}

NOINLINE void stuck_in_call() {
  int ends[2];
  char byte = 0;
  if (::pipe(ends) != 0 || ::read(ends[0], &byte, 1) < 0) fail("read");
}

NOINLINE void stuck_in_native() {
  std::mutex mutex;
  mutex.lock();
  mutex.lock();
}

NOINLINE void take_both(std::mutex& first, std::mutex& second, std::barrier<>& has_first) {
  first.lock();
  has_first.arrive_and_wait();
  second.lock();
}

NOINLINE void stuck_in_deadlock() {
  std::mutex a, b;
  std::barrier has_first(2);
  std::thread other([&] { take_both(b, a, has_first); });
  take_both(a, b, has_first);
}

NOINLINE void stuck_stopped() {
  ::raise(SIGSTOP);
  no_tail_call();
}

NOINLINE void stuck_in_order(int rank) {
  all_reduce(rank);
  no_tail_call();
}

NOINLINE void step(int rank, const std::string& kind) {
  if (kind == "python") stuck_in_loop();
  else if (kind == "call") stuck_in_call();
  else if (kind == "native") stuck_in_native();
  else if (kind == "deadlock") stuck_in_deadlock();
  else if (kind == "stopped") stuck_stopped();
  else if (kind == "order") stuck_in_order(rank);
  else barrier(rank);
  no_tail_call();
}

}  // namespace train

int main(int /*argc*/, char** argv) {
  const int rank = std::atoi(std::getenv("RANK"));
  connect_ranks(rank, std::atoi(std::getenv("WORLD_SIZE")));
  for (int i = 0; i < 100; ++i) {
    const bool hangs = rank == 2 && i == 3;
    if (hangs) std::puts("stuck");
    std::fflush(stdout);
    train::step(rank, hangs ? argv[1] : "");
  }
}
