#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace ddrun::fuzz {

/// The fuzzer's input, consumed from the front. At its end all values are 0 or empty.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : left_(reinterpret_cast<const char*>(data), size) {}

  [[nodiscard]] bool empty() const { return left_.empty(); }
  std::uint8_t byte() {
    if (left_.empty()) return 0;
    const auto first = static_cast<std::uint8_t>(left_.front());
    left_.remove_prefix(1);
    return first;
  }
  std::string_view bytes(std::size_t size) {
    const auto taken = left_.substr(0, size);
    left_.remove_prefix(taken.size());
    return taken;
  }

 private:
  std::string_view left_;
};

/// Aborts, which the fuzzer detects.
#define DDRUN_FUZZ_CHECK(condition)                                                       \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      std::fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
      __builtin_trap();                                                                   \
    }                                                                                     \
  } while (false)

}  // namespace ddrun::fuzz
