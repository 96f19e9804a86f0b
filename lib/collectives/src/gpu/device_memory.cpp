#include "gpu/device_memory.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>

#include "../cuda/sequence_walk.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/collectives/pattern.hpp"

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

namespace {

/// cuda/kernels.cu compiled by nvcc, for cuModuleLoadData(); null in a build without nvcc.
const void* gpu_kernels_image() {
#ifdef DDRUN_GPU_KERNELS
  return ddrun_gpu_kernels;
#else
  return nullptr;
#endif
}

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

/// Far longer than filling or comparing takes on a working device.
constexpr std::chrono::seconds work_limit{60};
constexpr std::size_t max_tables = 32;
constexpr std::size_t copied_at_once = std::size_t{4} << 20;

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

Result<std::unique_ptr<DeviceMemory>> DeviceMemory::make(std::shared_ptr<cuda::Device> device) {
  std::unique_ptr<DeviceMemory> made(new DeviceMemory(device));
  auto kernels = GpuKernels::load(device);
  if (!kernels && kernels.error().code == Errc::unsupported) {
    made->lacks_kernels_ = kernels.error().message;
    return made;
  }
  if (!kernels) return tl::unexpected(kernels.error());
  made->kernels_ = std::move(*kernels);
  made->counter_ = TRY(cuda::Array::make(std::move(device), sizeof(std::uint64_t)));
  TRY(made->self_test());
  return made;
}

Result<void> DeviceMemory::wait(const std::string& what) const {
  return device_->wait(cuda::never_cancel, Clock::now() + work_limit, what);
}

bool DeviceMemory::fits_shared_memory(const Sequence& sequence) const {
  return kernels_ && GpuKernels::table_bytes(sequence) <= static_cast<std::size_t>(device_->max_shared_memory());
}

Result<void> DeviceMemory::fill(std::span<std::byte> data, const Sequence& sequence, std::uint64_t first) {
  TRY(device_->use());
  if (fits_shared_memory(sequence)) {
    const auto table = TRY(table_of(sequence));
    TRY(kernels_->fill(data, sequence, table->data(), first));
    return wait("filling device memory");
  }
  const std::size_t element = size_of(sequence.type());
  piece_.resize(std::min(copied_at_once, data.size()));
  for (std::size_t done = 0; done < data.size(); done += piece_.size()) {
    const auto part = std::span(piece_).first(std::min(piece_.size(), data.size() - done));
    sequence.fill(part, first + done / element);
    TRY(write(data.subspan(done, part.size()), part));
  }
  return {};
}

Result<std::uint64_t> DeviceMemory::count_wrong(std::span<const std::byte> data, const Sequence& sequence,
                                                std::uint64_t first) {
  TRY(device_->use());
  std::uint64_t wrong = 0;
  if (fits_shared_memory(sequence)) {
    const auto table = TRY(table_of(sequence));
    TRY(device_->set(counter_.data(), std::byte{0}, counter_.size()));
    TRY(kernels_->count_wrong(data, sequence, table->data(), first, counter_.data()));
    TRY(device_->copy_to_host(&wrong, counter_.data(), sizeof(wrong)));
    TRY(wait("comparing device memory"));
    return wrong;
  }
  const std::size_t element = size_of(sequence.type());
  piece_.resize(std::min(copied_at_once, data.size()));
  for (std::size_t done = 0; done < data.size(); done += piece_.size()) {
    const auto part = std::span(piece_).first(std::min(piece_.size(), data.size() - done));
    TRY(read(part, data.subspan(done, part.size())));
    wrong += sequence.count_wrong(part, first + done / element);
  }
  return wrong;
}

Result<void> DeviceMemory::set(std::span<std::byte> data, std::byte value) {
  TRY(device_->use());
  TRY(device_->set(data.data(), value, data.size()));
  return wait("setting device memory");
}

Result<void> DeviceMemory::read(std::span<std::byte> to, std::span<const std::byte> from) {
  TRY(device_->use());
  TRY(device_->copy_to_host(to.data(), from.data(), from.size()));
  return wait("copying from the device");
}

Result<void> DeviceMemory::write(std::span<std::byte> to, std::span<const std::byte> from) {
  TRY(device_->use());
  TRY(device_->copy_to_device(to.data(), from.data(), from.size()));
  return wait("copying to the device");
}

Result<const cuda::Array*> DeviceMemory::table_of(const Sequence& sequence) {
  const auto found = std::find_if(tables_.begin(), tables_.end(), [&](const Table& table) {
    return std::equal(table.period.begin(), table.period.end(), sequence.period().begin(), sequence.period().end());
  });
  if (found != tables_.end()) {
    std::rotate(found, found + 1, tables_.end());
    return &tables_.back().array;
  }
  if (tables_.size() == max_tables) tables_.erase(tables_.begin());
  const std::vector<std::byte> content = GpuKernels::table_of(sequence);
  auto array = TRY(cuda::Array::make(device_, content.size()));
  TRY(write({array.data(), content.size()}, content));
  tables_.push_back({{sequence.period().begin(), sequence.period().end()}, std::move(array)});
  return &tables_.back().array;
}

/// Otherwise a comparison that never detects anything would pass unnoticed.
Result<void> DeviceMemory::self_test() {
  constexpr std::size_t trial_length = 101;
  constexpr std::size_t trial_count = 40'009;
  constexpr std::size_t trial_wrong = 20'011;
  std::vector<std::byte> period(trial_length * sizeof(std::uint32_t));
  for (std::size_t i = 0; i < trial_length; ++i) {
    const auto number = static_cast<std::uint32_t>(i * 2654435761U + 1);
    std::memcpy(period.data() + i * sizeof(number), &number, sizeof(number));
  }
  const Sequence sequence(DataType::uint32, std::move(period));
  auto array = TRY(cuda::Array::make(device_, trial_count * sizeof(std::uint32_t)));
  const std::span<std::byte> data(array.data(), array.size());
  TRY(fill(data, sequence, 5));
  std::vector<std::byte> copy(data.size());
  TRY(read(copy, data));
  const std::uint64_t wrong_by_host = sequence.count_wrong(copy, 5);
  const auto right = TRY(count_wrong(data, sequence, 5));
  std::byte& element = copy[trial_wrong * sizeof(std::uint32_t)];
  element ^= std::byte{1};
  TRY(write(data.subspan(trial_wrong * sizeof(std::uint32_t), 1), {&element, 1}));
  const auto wrong = TRY(count_wrong(data, sequence, 5));
  if (wrong_by_host == 0 && right == 0 && wrong == 1) return {};
  return fail(Errc::unavailable,
              concat("the kernels do not work on ", device_->name(), ": ", wrong_by_host, " elements filled wrong, ",
                     right, " and ", wrong, " found wrong where there are 0 and 1"));
}

}  // namespace ddrun::collectives
