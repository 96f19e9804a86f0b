#include "agreement.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "status.hpp"

namespace ddrun::allreduce {

Result<int> agree_on_status(collectives::Communicator& control, int status, Milliseconds patience) {
  static constexpr std::array kByGravity{kRight, kTooSlow, kFailed};
  const auto own =
      static_cast<std::uint64_t>(std::find(kByGravity.begin(), kByGravity.end(), status) - kByGravity.begin());
  std::uint64_t gravest = own;
  const auto bytes = std::as_writable_bytes(std::span(&gravest, 1));
  auto agreed = control.all_reduce(bytes, bytes, collectives::DataType::uint64, collectives::ReduceOp::max,
                                   Clock::now() + patience);
  if (!agreed) return tl::unexpected(agreed.error());
  return kByGravity[std::clamp<std::uint64_t>(gravest, own, kByGravity.size() - 1)];
}

}  // namespace ddrun::allreduce
