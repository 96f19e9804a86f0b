#include "gpu/nccl_buffers.hpp"

#include <algorithm>
#include <utility>

#include "ddrun/base/text.hpp"

namespace ddrun::collectives {

namespace {

/// Each rank's communicator allocates 1 to 3 GiB on a machine with eight GPUs, less with fewer.
constexpr std::size_t max_communicator_room = std::size_t{2} << 30U;
/// Before 2.22 NCCL connects a communicator, and allocates for it, when it is made and not when it is first used.
constexpr int first_lazy_version = 22200;

/// Null where ncclMemAlloc() is unavailable: old libraries and drivers, no peer access.
std::shared_ptr<std::byte> memory_of_nccl(const nccl::Library& library, const std::shared_ptr<cuda::Device>& device,
                                          std::size_t bytes) {
  void* memory = nullptr;
  if (!library.registers_buffers() || library.mem_alloc(&memory, bytes) != nccl::success) return nullptr;
  return {static_cast<std::byte*>(memory), [device, free = library.mem_free](std::byte* data) {
            if (!device->is_unusable() && device->use()) (void)free(data);
          }};
}

}  // namespace

Result<void> check_room(const nccl::Library& library, const cuda::Device& device, std::size_t bytes, int ranks) {
  const auto free = device.free_memory();
  if (!free) return tl::unexpected(free.error());
  const std::size_t share = *free / static_cast<std::size_t>(ranks);
  // See NcclSession: the one that is used is split off another.
  const std::size_t communicators = library.comm_split != nullptr && library.version < first_lazy_version ? 2 : 1;
  const std::size_t nccl_room = std::min(communicators * max_communicator_room, share / 2);
  if (bytes <= (share - nccl_room) / 2) return {};
  return fail(Errc::invalid_argument,
              concat("two buffers of ", bytes >> 20U, " MiB and ", nccl_room >> 20U,
                     " MiB for NCCL do not fit into the ", *free >> 20U, " MiB that are free on ", device.name(),
                     ranks == 1 ? "" : concat(" for ", ranks, " ranks")));
}

Result<NcclBuffers> NcclBuffers::make(const nccl::Library& library, const std::shared_ptr<cuda::Device>& device,
                                      std::size_t bytes) {
  const std::size_t some = std::max<std::size_t>(bytes, 1);
  NcclBuffers made{memory_of_nccl(library, device, some), memory_of_nccl(library, device, some), bytes, true};
  if (made.send != nullptr && made.recv != nullptr) return made;
  made = {nullptr, nullptr, bytes, false};
  for (std::shared_ptr<std::byte>* const to : {&made.send, &made.recv}) {
    auto array = cuda::Array::make(device, some);
    if (!array) return tl::unexpected(array.error());
    const auto owner = std::make_shared<cuda::Array>(std::move(*array));
    *to = {owner, owner->data()};
  }
  return made;
}

}  // namespace ddrun::collectives
