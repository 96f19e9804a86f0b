#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ddrun/collectives/data_type.hpp"

namespace ddrun::collectives {

/// Elements without end, made of one period that each time begins at another place, so that a whole period apart is
/// another place too. Element p is period[(p % n + p / n % n * turn()) % n], n being the period's length.
class Sequence {
 public:
  Sequence() = default;
  /// `period` has whole elements, a prime number of them other than turn().
  Sequence(DataType type, std::vector<std::byte> period);

  [[nodiscard]] DataType type() const { return type_; }
  [[nodiscard]] std::span<const std::byte> period() const { return period_; }
  /// Elements of a period.
  [[nodiscard]] std::size_t length() const { return length_; }
  [[nodiscard]] static constexpr std::size_t turn() { return 4099; }

  /// Elements first, first + 1, …; `data` are whole elements.
  void fill(std::span<std::byte> data, std::uint64_t first) const;
  /// How many elements are not those.
  [[nodiscard]] std::size_t count_wrong(std::span<const std::byte> data, std::uint64_t first) const;

 private:
  DataType type_ = DataType::uint8;
  std::size_t length_ = 0;
  std::vector<std::byte> period_;
};

}  // namespace ddrun::collectives
