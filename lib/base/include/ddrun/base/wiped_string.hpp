#pragma once

#include <string.h>

#include <cstddef>
#include <memory>
#include <string>

namespace ddrun {

/// Wipes memory on deallocation, also when a container grows.
template <class T>
struct WipingAllocator {
  using value_type = T;
  WipingAllocator() = default;
  template <class U>
  WipingAllocator(const WipingAllocator<U>& /*other*/) noexcept {
  }  // NOLINT(google-explicit-constructor): as containers do
  T* allocate(std::size_t count) { return std::allocator<T>().allocate(count); }
  void deallocate(T* memory, std::size_t count) noexcept {
    ::explicit_bzero(memory, count * sizeof(T));
    std::allocator<T>().deallocate(memory, count);
  }
  bool operator==(const WipingAllocator&) const = default;
};

/// For strings that may contain a secret. (Strings below 16 bytes are stored in the object itself and not wiped.)
using WipedString = std::basic_string<char, std::char_traits<char>, WipingAllocator<char>>;

inline void wipe(std::string& text) {
  ::explicit_bzero(text.data(), text.size());
  text.clear();
}

}  // namespace ddrun
