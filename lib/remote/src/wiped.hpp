#pragma once

#include <string.h>

#include <memory>
#include <string>

namespace ddrun::remote {

/// Memory that is overwritten when it is given back, also when a container grows.
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

/// For texts in which there may be a secret. (One of less than 16 bytes lies in the object itself and is not wiped.)
using WipedString = std::basic_string<char, std::char_traits<char>, WipingAllocator<char>>;

inline void wipe(std::string& text) {
  ::explicit_bzero(text.data(), text.size());
  text.clear();
}

}  // namespace ddrun::remote
