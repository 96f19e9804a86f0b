#pragma once

// Fake GPU streams: querying a stream runs its work, step by step. Work that depends on a peer is not done yet, so
// ranks can be threads or processes and nothing blocks.

#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "gpu/cuda_abi.hpp"

namespace ddrun::test::fake {

/// One step; true when done.
using Work = std::function<bool()>;
/// Creates the work, once per graph launch.
using Recipe = std::function<Work()>;

/// A setting from FAKE_GPU: "devices=2 nccl=22809 hang=ncclAllReduce:3 fail=ncclBroadcast:1 dir=/tmp/x". hang and fail
/// apply to each rank's n-th call of that function, counted from 1.
inline std::string wanted(const std::string& name, const std::string& otherwise) {
  const char* const all = std::getenv("FAKE_GPU");
  const std::string text = std::string(" ") + (all != nullptr ? all : "") + " ";
  const auto at = text.find(" " + name + "=");
  if (at == std::string::npos) return otherwise;
  const auto begin = at + name.size() + 2;
  return text.substr(begin, text.find(' ', begin) - begin);
}

}  // namespace ddrun::test::fake

namespace ddrun::collectives::cuda {

struct StreamState {
  std::deque<test::fake::Work> queue;
  bool capturing = false;
  std::vector<test::fake::Recipe> captured;

  void add(test::fake::Recipe recipe) {
    if (capturing) captured.push_back(std::move(recipe));
    else queue.push_back(recipe());
  }

  /// Runs the queue; true if all is done.
  bool run() {
    while (!queue.empty()) {
      if (!queue.front()()) return false;
      queue.pop_front();
    }
    return true;
  }
};

}  // namespace ddrun::collectives::cuda
