#include "ddrun/logs/byte_queue.hpp"

#include <algorithm>

namespace ddrun::logs {

void ByteQueue::make_room(std::size_t count) {
  const std::size_t used = size();
  if (used + count <= capacity_ && begin_ >= capacity_ / 2) {
    std::memmove(bytes_.get(), bytes_.get() + begin_, used);
  } else {
    const std::size_t wanted = std::max({used + count, capacity_ * 2, std::size_t{16} << 10U});
    std::unique_ptr<char[]> bigger(new char[wanted]);
    if (used > 0) std::memcpy(bigger.get(), data(), used);
    bytes_ = std::move(bigger);
    capacity_ = wanted;
  }
  begin_ = 0;
  end_ = used;
}

}  // namespace ddrun::logs
