#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddrun/test/catch.hpp"

// The store's wire protocol: captured bytes, and a client for raw bytes.
namespace ddrun::test {

/// "00 cef7853c" -> five bytes; blanks are ignored.
inline std::string unhex(std::string_view text) {
  std::string bytes;
  int high = -1;
  for (const char c : text) {
    if (c == ' ' || c == '\n') continue;
    const int digit = c <= '9' ? c - '0' : c - 'a' + 10;
    REQUIRE((digit >= 0 && digit < 16));
    if (high < 0) {
      high = digit;
    } else {
      bytes.push_back(static_cast<char>(high * 16 + digit));
      high = -1;
    }
  }
  REQUIRE(high < 0);
  return bytes;
}

inline std::string hex(std::string_view bytes) {
  std::string text;
  for (const unsigned char c : bytes) {
    text.push_back("0123456789abcdef"[c / 16]);
    text.push_back("0123456789abcdef"[c % 16]);
  }
  return text;
}

inline std::string number(std::uint64_t value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

/// A length and that many bytes.
inline std::string field(std::string_view bytes) { return number(bytes.size()) + std::string(bytes); }

inline std::string greeting() { return unhex("00 cef7853c"); }

struct Exchange {
  const char* name;
  std::string sent;
  std::string answer;
};

/// What a PyTorch 2.14 client sent in one session and what PyTorch's server answered, in order.
inline const std::vector<Exchange>& captured_session() {
  static const std::vector<Exchange> session = {
      {"greeting", unhex("00 cef7853c"), ""},
      {"ping", unhex("0d a9340000"), unhex("a9340000")},
      {"set a", unhex("01 0200000000000000 2f61 0200000000000000 6869"), ""},
      {"get a: wait", unhex("06 0100000000000000 0200000000000000 2f61"), unhex("00")},
      {"get a", unhex("03 0200000000000000 2f61"), unhex("0200000000000000 6869")},
      {"add 5", unhex("04 0200000000000000 2f6e 0500000000000000"), unhex("0500000000000000")},
      {"add -7", unhex("04 0200000000000000 2f6e f9ffffffffffffff"), unhex("feffffffffffffff")},
      {"get n", unhex("03 0200000000000000 2f6e"), unhex("0200000000000000 2d32")},
      {"check a and zz", unhex("05 0200000000000000 0200000000000000 2f61 0300000000000000 2f7a7a"), unhex("01")},
      {"check a", unhex("05 0100000000000000 0200000000000000 2f61"), unhex("00")},
      {"wait zz", unhex("06 0100000000000000 0300000000000000 2f7a7a"), ""},
      {"cancel", unhex("0c"), unhex("01")},
      {"compare_set, absent", unhex("02 0200000000000000 2f63 0000000000000000 0200000000000000 7631"),
       unhex("0200000000000000 7631")},
      {"compare_set, match", unhex("02 0200000000000000 2f63 0200000000000000 7631 0200000000000000 7632"),
       unhex("0200000000000000 7632")},
      {"compare_set, no match", unhex("02 0200000000000000 2f63 0300000000000000 626164 0200000000000000 7633"),
       unhex("0200000000000000 7632")},
      {"compare_set, absent but expected",
       unhex("02 0800000000000000 2f6d697373696e67 0100000000000000 78 0100000000000000 79"),
       unhex("0100000000000000 78")},
      {"number of keys", unhex("07"), unhex("0300000000000000")},
      {"delete c", unhex("08 0200000000000000 2f63"), unhex("0100000000000000")},
      {"delete c again", unhex("08 0200000000000000 2f63"), unhex("0000000000000000")},
      {"append", unhex("09 0200000000000000 2f70 0200000000000000 6162"), ""},
      {"multi_set",
       unhex("0b 0200000000000000 0300000000000000 2f6d31 0100000000000000 78 "
             "0300000000000000 2f6d32 0200000000000000 7979"),
       ""},
      {"multi_get: wait", unhex("06 0200000000000000 0300000000000000 2f6d31 0300000000000000 2f6d32"), unhex("00")},
      {"multi_get", unhex("0a 0200000000000000 0300000000000000 2f6d31 0300000000000000 2f6d32"),
       unhex("0100000000000000 78 0200000000000000 7979")},
      {"barrier of one", unhex("12 0200000000000000 2f62 0100000000000000"), unhex("00")},
      {"barrier of two", unhex("12 0300000000000000 2f6232 0200000000000000"), ""},
      {"cancel the barrier", unhex("0c"), unhex("01")},
      {"barrier's counters", unhex("0a 0200000000000000 0200000000000000 2f62 0300000000000000 2f6232"),
       unhex("0100000000000000 31 0100000000000000 31")},
      // From PyTorch's source, not from the wire.
      {"push", unhex("0e 0200000000000000 2f71 0200000000000000 6531"), ""},
      {"length of the queue", unhex("10 0200000000000000 2f71"), unhex("0100000000000000")},
      {"pop: wait", unhex("06 0100000000000000 0200000000000000 2f71"), unhex("00")},
      {"pop", unhex("0f 0200000000000000 2f71"), unhex("0100000000000000 0200000000000000 6531")},
      {"pop nothing", unhex("0f 0200000000000000 2f71"), unhex("0000000000000000")},
      {"length of no queue", unhex("10 0200000000000000 2f71"), unhex("0000000000000000")},
      {"queues are no keys", unhex("07"), unhex("0700000000000000")},
  };
  return session;
}

/// What a PyTorch 1.13 client sent, and the answers; its callback connection sends nothing.
inline const std::vector<Exchange>& captured_old_session() {
  static const std::vector<Exchange> session = {
      {"set a", unhex("00 0200000000000000 2f61 0200000000000000 6869"), ""},
      {"get a: wait", unhex("05 0100000000000000 0200000000000000 2f61"), unhex("00")},
      {"get a", unhex("02 0200000000000000 2f61"), unhex("0200000000000000 6869")},
      {"add 5", unhex("03 0200000000000000 2f6e 0500000000000000"), unhex("0500000000000000")},
      {"check a and zz", unhex("04 0200000000000000 0200000000000000 2f61 0300000000000000 2f7a7a"), unhex("01")},
      {"check a", unhex("04 0100000000000000 0200000000000000 2f61"), unhex("00")},
      {"compare_set, absent", unhex("01 0200000000000000 2f63 0000000000000000 0200000000000000 7631"),
       unhex("0200000000000000 7631")},
      {"number of keys", unhex("06"), unhex("0300000000000000")},
      {"watch c", unhex("07 0200000000000000 2f63"), unhex("03")},
      {"delete c", unhex("08 0200000000000000 2f63"),
       unhex("02 0200000000000000 2f63 0200000000000000 7631 0000000000000000"  // the callback arrives before the reply
             "0100000000000000")},
      {"delete c again", unhex("08 0200000000000000 2f63"), unhex("0000000000000000")},
  };
  return session;
}

/// A raw connection to the loopback. Each read times out after ten seconds.
class RawClient {
 public:
  explicit RawClient(std::uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(fd_ >= 0);
    REQUIRE(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  }
  RawClient(RawClient&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  RawClient& operator=(RawClient&&) = delete;
  ~RawClient() { close(); }

  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  [[nodiscard]] int fd() const { return fd_; }

  /// False if the server has closed the connection.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  /// As much as the connection takes without waiting longer than `patience` for room.
  std::size_t send_while_taken(std::string_view bytes, std::chrono::milliseconds patience) {
    std::size_t total = 0;
    while (total < bytes.size()) {
      pollfd entry{fd_, POLLOUT, 0};
      if (::poll(&entry, 1, static_cast<int>(patience.count())) != 1) break;
      const ssize_t sent = ::send(fd_, bytes.data() + total, bytes.size() - total, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent <= 0) break;
      total += static_cast<std::size_t>(sent);
    }
    return total;
  }

  /// Up to `size` bytes; fewer if the server closes the connection.
  std::string receive(std::size_t size) {
    std::string bytes;
    while (bytes.size() < size) {
      char buffer[65536];
      const ssize_t got = read_some(buffer, std::min(sizeof buffer, size - bytes.size()));
      if (got <= 0) break;
      bytes.append(buffer, static_cast<std::size_t>(got));
    }
    return bytes;
  }

  /// Whether the server closes the connection without another byte.
  bool closed_by_server() {
    char byte;
    return read_some(&byte, 1) <= 0;
  }

 private:
  ssize_t read_some(char* to, std::size_t size) {
    pollfd entry{fd_, POLLIN, 0};
    if (::poll(&entry, 1, 10'000) != 1) FAIL("nothing came from the server for ten seconds");
    return ::recv(fd_, to, size, 0);
  }

  int fd_;
};

}  // namespace ddrun::test
