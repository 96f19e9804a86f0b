#include "gpu/nccl_buffers.hpp"

#include <algorithm>
#include <utility>

#include "ddrun/base/text.hpp"

namespace ddrun::collectives {

namespace {

/// Each rank's NCCL allocates 1 to 3 GiB on a machine with eight GPUs, less with fewer.
constexpr std::size_t max_nccl_room = std::size_t{2} << 30U;

}  // namespace

Result<void> check_room(const cuda::Device& device, std::size_t bytes, int ranks) {
  const auto free = device.free_memory();
  if (!free) return tl::unexpected(free.error());
  const std::size_t share = *free / static_cast<std::size_t>(ranks);
  const std::size_t nccl_room = std::min(max_nccl_room, share / 2);
  if (bytes <= (share - nccl_room) / 2) return {};
  return fail(Errc::invalid_argument,
              concat("two buffers of ", bytes >> 20U, " MiB and ", nccl_room >> 20U,
                     " MiB for NCCL do not fit into the ", *free >> 20U, " MiB that are free on ", device.name(),
                     ranks == 1 ? "" : concat(" for ", ranks, " ranks")));
}

Result<NcclBuffers> NcclBuffers::make(const nccl::Library& library, std::shared_ptr<cuda::Device> device,
                                      std::size_t bytes) {
  NcclBuffers made(std::move(device), bytes);
  const std::size_t some = std::max<std::size_t>(bytes, 1);
  if (library.registers_buffers()) {
    const auto got = [&](std::byte*& to) {
      void* memory = nullptr;
      if (library.mem_alloc(&memory, some) != nccl::success) return false;
      to = static_cast<std::byte*>(memory);
      return true;
    };
    made.free_ = library.mem_free;
    if (got(made.data_[0]) && got(made.data_[1])) return made;
    // ncclMemAlloc() is unavailable on some systems (no peer access, old drivers).
    if (made.data_[0] != nullptr) (void)library.mem_free(std::exchange(made.data_[0], nullptr));
    made.free_ = nullptr;
  }
  for (std::size_t i = 0; i < 2; ++i) {
    auto array = cuda::Array::make(made.device_, some);
    if (!array) return tl::unexpected(array.error());
    made.data_[i] = array->data();
    made.arrays_[i] = std::move(*array);
  }
  return made;
}

NcclBuffers::NcclBuffers(NcclBuffers&& other) noexcept
    : device_(std::move(other.device_)),
      bytes_(other.bytes_),
      data_(std::exchange(other.data_, {})),
      arrays_(std::move(other.arrays_)),
      free_(std::exchange(other.free_, nullptr)) {}

NcclBuffers::~NcclBuffers() {
  if (free_ == nullptr || device_->is_unusable() || !device_->use()) return;
  for (std::byte* const data : data_) {
    if (data != nullptr) (void)free_(data);
  }
}

}  // namespace ddrun::collectives
