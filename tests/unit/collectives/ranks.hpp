#pragma once

#include <sys/uio.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "ddrun/base/text.hpp"
#include "ddrun/collectives/communicator.hpp"
#include "ddrun/test/store.hpp"

namespace ddrun::test {

/// Sanitizers slow the tests down tenfold or more, so fewer combinations are tried.
#ifdef DDRUN_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
/// `all`, or under a sanitizer only the first `few`.
template <class Value>
std::vector<Value> few_if_sanitized(std::vector<Value> all, std::size_t few) {
  if (kSanitized && all.size() > few) all.resize(few);
  return all;
}

/// Runs `body` once per rank, each on its own thread. Returns the problems by rank; empty: success.
inline std::vector<std::string> run_ranks(int size, const std::function<std::string(const collectives::Group&)>& body) {
  const auto server = started();
  std::vector<std::unique_ptr<store::TcpClient>> clients;
  for (int rank = 0; rank < size; ++rank) clients.push_back(connected(server->port()));
  std::vector<std::string> problems(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      collectives::Group group;
      group.rank = rank;
      group.size = size;
      group.store = clients[static_cast<std::size_t>(rank)].get();
      group.prefix = "test/";
      problems[static_cast<std::size_t>(rank)] = body(group);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return problems;
}

/// Whether an error names both of these as different calls.
inline bool names_both_calls(const std::string& words, const std::string& one, const std::string& other) {
  const auto contains = [&](const std::string& text) { return words.find(text) != std::string::npos; };
  return contains(one) && contains(other) && contains("all ranks must make the same calls");
}

/// Whether cross-process copies are permitted; a sandbox may deny them.
inline bool can_access_processes() {
  std::byte from{1};
  std::byte to{};
  const iovec here{&to, 1};
  const iovec there{&from, 1};
  return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 1;
}

inline Deadline in_time() { return Clock::now() + std::chrono::seconds(30); }

}  // namespace ddrun::test
