#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "ddrun/base/text.hpp"
#include "ddrun/collectives/communicator.hpp"
#include "ddrun/store/memory_store.hpp"

namespace ddrun::test {

/// Threads as ranks: runs `body` once per rank and returns what went wrong, by rank; empty texts mean success.
inline std::vector<std::string> run_ranks(int size, const std::function<std::string(const collectives::Group&)>& body) {
  store::MemoryStore store;
  std::vector<std::string> problems(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      collectives::Group group;
      group.rank = rank;
      group.size = size;
      group.store = &store;
      group.prefix = "test/";
      problems[static_cast<std::size_t>(rank)] = body(group);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return problems;
}

inline Deadline in_time() { return Clock::now() + std::chrono::seconds(30); }

}  // namespace ddrun::test
