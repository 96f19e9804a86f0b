#include "gpu/kernels.hpp"

#include <array>
#include <utility>

#include "../cuda/sequence_walk.hpp"
#include "ddrun/base/text.hpp"

#ifdef DDRUN_GPU_KERNELS
// Embeds the file between two symbols.
__asm__(
    ".pushsection .rodata\n"
    ".balign 64\n"
    ".globl ddrun_gpu_kernels\n"
    ".hidden ddrun_gpu_kernels\n"
    "ddrun_gpu_kernels:\n"
    ".incbin \"" DDRUN_GPU_KERNELS
    "\"\n"
    ".popsection\n");
extern "C" const unsigned char ddrun_gpu_kernels[];
#endif

namespace ddrun::collectives {

const void* gpu_kernels_image() {
#ifdef DDRUN_GPU_KERNELS
  return ddrun_gpu_kernels;
#else
  return nullptr;
#endif
}

namespace {

// Grid-stride launch: as many threads as a multiprocessor's registers and shared memory allow. Must match kernels.cu.
constexpr unsigned threads_per_block = 512;
constexpr unsigned blocks_per_multiprocessor = 3;

/// The first arguments of the kernels, in order.
struct Walk {
  Walk(std::span<const std::byte> data, const Sequence& sequence, const std::byte* table, std::uint64_t first)
      : element(size_of(sequence.type())),
        address(cuda::address_of(data.data())),
        bytes(data.size()),
        words(cuda::address_of(table)),
        period(static_cast<std::uint32_t>(sequence.period().size())),
        period_shift(static_cast<std::uint32_t>(Sequence::period_shift() * element % period)),
        begin(first * element) {}

  std::size_t element;
  cuda::Address address;
  std::uint64_t bytes;
  cuda::Address words;
  std::uint32_t period;
  std::uint32_t period_shift;
  std::uint64_t begin;
};

/// Not built for this device or this driver.
bool is_refusal(cuda::Status status) {
  return status == cuda::invalid_image || status == cuda::no_binary_for_gpu || status == cuda::invalid_ptx ||
         status == cuda::unsupported_ptx_version;
}

}  // namespace

Result<GpuKernels> GpuKernels::load(std::shared_ptr<cuda::Device> device) {
  const void* const image = gpu_kernels_image();
  if (image == nullptr) return fail(Errc::unsupported, "no kernels in this build");
  GpuKernels made(std::move(device));
  const cuda::Driver& driver = made.device_->driver();
  cuda::Status status = driver.module_load_data(&made.module_, image);
  if (status != cuda::success) made.module_ = nullptr;
  // A driver that loads functions lazily may refuse them only here.
  cuda::Function function = nullptr;
  if (status == cuda::success) status = driver.module_get_function(&function, made.module_, "ddrun_fill_1");
  if (status == cuda::success) return made;
  return fail(is_refusal(status) ? Errc::unsupported : Errc::unavailable,
              driver.describe("the driver refuses the kernels", status));
}

GpuKernels::GpuKernels(GpuKernels&& other) noexcept
    : device_(std::move(other.device_)), module_(std::exchange(other.module_, nullptr)) {}

GpuKernels& GpuKernels::operator=(GpuKernels&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(module_, other.module_);
  return *this;
}

GpuKernels::~GpuKernels() {
  if (module_ == nullptr || device_->is_unusable()) return;
  if (device_->use()) (void)device_->driver().module_unload(module_);
}

std::size_t GpuKernels::table_bytes(const Sequence& sequence) {
  return gpu::table_words(static_cast<std::uint32_t>(sequence.period().size())) * sizeof(std::uint32_t);
}

std::vector<std::byte> GpuKernels::table_of(const Sequence& sequence) {
  const auto period = sequence.period();
  std::vector<std::byte> table(table_bytes(sequence));
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = period[i % period.size()];
  return table;
}

Result<void> GpuKernels::launch(const std::string& name, std::size_t shared_bytes,
                                std::span<void* const> arguments) const {
  const cuda::Driver& driver = device_->driver();
  cuda::Function function = nullptr;
  TRY(driver.check(driver.module_get_function(&function, module_, name.c_str()), name));
  if (shared_bytes > 0) {
    const auto bytes = static_cast<int>(shared_bytes);
    const auto status = driver.func_set_attribute(function, cuda::attribute_dynamic_shared_memory, bytes);
    TRY(driver.check(status, concat(name, " with ", bytes, " bytes of shared memory")));
  }
  const unsigned blocks = blocks_per_multiprocessor * static_cast<unsigned>(device_->multiprocessors());
  return driver.check(
      driver.launch_kernel(function, blocks, 1, 1, threads_per_block, 1, 1, static_cast<unsigned>(shared_bytes),
                           device_->stream(), const_cast<void**>(arguments.data()), nullptr),
      name);
}

Result<void> GpuKernels::fill(std::span<std::byte> data, const Sequence& sequence, const std::byte* table,
                              std::uint64_t first) const {
  if (data.empty()) return {};
  Walk walk(data, sequence, table, first);
  const std::array<void*, 6> arguments{&walk.address, &walk.bytes,        &walk.words,
                                       &walk.period,  &walk.period_shift, &walk.begin};
  return launch(concat("ddrun_fill_", walk.element), table_bytes(sequence), arguments);
}

Result<void> GpuKernels::count_wrong(std::span<const std::byte> data, const Sequence& sequence, const std::byte* table,
                                     std::uint64_t first, std::byte* counter) const {
  if (data.empty()) return {};
  Walk walk(data, sequence, table, first);
  cuda::Address wrong = cuda::address_of(counter);
  const std::array<void*, 7> arguments{&walk.address,      &walk.bytes, &walk.words, &walk.period,
                                       &walk.period_shift, &walk.begin, &wrong};
  return launch(concat("ddrun_count_wrong_", walk.element), table_bytes(sequence), arguments);
}

}  // namespace ddrun::collectives
