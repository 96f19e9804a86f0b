#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <string_view>

namespace ddrun::logs {

/// Bytes in order: put in at the back, taken from the front. Its memory grows as needed, is not initialised, and is
/// given back when the queue runs empty after having been large.
class ByteQueue {
 public:
  [[nodiscard]] std::size_t size() const { return end_ - begin_; }
  [[nodiscard]] bool empty() const { return begin_ == end_; }
  [[nodiscard]] const char* data() const { return bytes_.get() + begin_; }

  /// Room for `count` bytes at the back; say with `filled` how many of them were used.
  [[nodiscard]] char* room(std::size_t count) {
    if (capacity_ - end_ < count) make_room(count);
    return bytes_.get() + end_;
  }
  void filled(std::size_t count) { end_ += count; }

  void append(std::string_view text) {
    if (text.empty()) return;
    std::memcpy(room(text.size()), text.data(), text.size());
    end_ += text.size();
  }

  void consume(std::size_t count) {
    begin_ += count;
    if (begin_ != end_) return;
    begin_ = end_ = 0;
    if (capacity_ > keep) {
      bytes_.reset();
      capacity_ = 0;
    }
  }

 private:
  static constexpr std::size_t keep = std::size_t{2} << 20U;

  void make_room(std::size_t count);

  std::unique_ptr<char[]> bytes_;
  std::size_t capacity_ = 0;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace ddrun::logs
