#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ddrun/base/duration.hpp"

namespace ddrun::cli {

/// `ddrun store`: run a store by itself until a signal ends it.
struct StoreServe {
  std::vector<std::string> addresses{"127.0.0.1", "::1"};
  std::uint16_t port = 29500;             ///< 0: any free one
  std::uint64_t max_memory = 4ULL << 30;  ///< bytes; 0 for no limit
  bool stats = false;                     ///< print them at the end
};

/// `ddrun store get KEY` and the like: ask a store that is running.
struct StoreAsk {
  enum class What { get, set, add, wait, list, del };
  What what = What::get;
  std::string host;  ///< a name or an address
  std::uint16_t port = 0;
  std::vector<std::string> keys;  ///< none for `list`
  std::string value;              ///< of `set`
  bool value_from_stdin = false;
  std::int64_t delta = 1;      ///< of `add`
  std::string prefix;          ///< what each key begins with, not shown by `list`
  bool raw = false;            ///< values as they are, without a newline or escapes
  Milliseconds timeout{5000};  ///< for the server to answer, and then for keys to come
};

}  // namespace ddrun::cli
