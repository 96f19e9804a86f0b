#pragma once

// Streams of a fake GPU: each status query runs the next step of the work. Work that depends on a peer stays
// incomplete, so ranks can be threads or processes and nothing blocks.

#include <cstdint>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "gpu/cuda_abi.hpp"

namespace ddrun::test::fake {

/// One step; true when it was the last.
using Work = std::function<bool()>;
/// Makes such work anew, as often as a graph is launched.
using Recipe = std::function<Work()>;

/// The test's configuration, from FAKE_GPU: "devices=2 nccl=22809 hang=ncclAllReduce:3 fail=ncclBroadcast:1
/// dir=/tmp/x". hang and fail: the n-th call of that function by each rank, counted from 1.
/// kernels=209, functions=209: the status of cuModuleLoadData, cuModuleGetFunction.
/// register=none: ncclCommRegister succeeds without a handle. memory=BYTES: of a GPU, always free.
/// block: that call does not return before an abort. init=hang, abort=hang: ncclCommInitRankConfig; ncclCommAbort and
/// the exit handler. log=FILE: what is noted, a line each.
inline std::string wanted(const std::string& name, const std::string& otherwise) {
  const char* const all = std::getenv("FAKE_GPU");
  const std::string text = std::string(" ") + (all != nullptr ? all : "") + " ";
  const auto at = text.find(" " + name + "=");
  if (at == std::string::npos) return otherwise;
  const auto begin = at + name.size() + 2;
  return text.substr(begin, text.find(' ', begin) - begin);
}

/// Appends to the test's log.
inline void note(const std::string& event) {
  const std::string log = wanted("log", "");
  if (!log.empty()) std::ofstream(log, std::ios::app) << event + "\n" << std::flush;
}

}  // namespace ddrun::test::fake

namespace ddrun::collectives::cuda {

struct StreamState {
  std::deque<test::fake::Work> queue;
  bool capturing = false;
  std::vector<test::fake::Recipe> written_down;

  void add(test::fake::Recipe recipe) {
    if (capturing) written_down.push_back(std::move(recipe));
    else queue.push_back(recipe());
  }

  /// Whether everything is done.
  bool run() {
    while (!queue.empty()) {
      if (!queue.front()()) return false;
      queue.pop_front();
    }
    return true;
  }
};

}  // namespace ddrun::collectives::cuda
