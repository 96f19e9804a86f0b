#include "gpu/device_memory.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "ddrun/base/text.hpp"
#include "ddrun/collectives/pattern.hpp"

namespace ddrun::collectives {

namespace {

/// Far longer than filling or comparing takes on a working device.
constexpr std::chrono::seconds work_limit{60};
constexpr std::size_t max_tables = 32;
constexpr std::size_t copied_at_once = std::size_t{4} << 20;

}  // namespace

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
