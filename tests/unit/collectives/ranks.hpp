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

/// Under a sanitizer everything takes ten times as long or more: there, tests of many combinations try fewer of them.
#ifdef DDRUN_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
/// `all`, or only the first `few` of them under a sanitizer.
template <class Value>
std::vector<Value> few_if_sanitized(std::vector<Value> all, std::size_t few) {
  if (kSanitized && all.size() > few) all.resize(few);
  return all;
}

/// Threads as ranks: runs `body` once per rank and returns what went wrong, by rank; empty texts mean success.
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

/// Whether the error's words are those of ranks that make different calls, and name both of these.
inline bool names_both_calls(const std::string& words, const std::string& one, const std::string& other) {
  const auto contains = [&](const std::string& text) { return words.find(text) != std::string::npos; };
  return contains(one) && contains(other) && contains("all ranks must make the same calls");
}

/// Whether this process may copy from one process to another: a sandbox may refuse that.
inline bool can_access_processes() {
  std::byte from{1};
  std::byte to{};
  const iovec here{&to, 1};
  const iovec there{&from, 1};
  return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 1;
}

inline Deadline in_time() { return Clock::now() + std::chrono::seconds(30); }

}  // namespace ddrun::test
