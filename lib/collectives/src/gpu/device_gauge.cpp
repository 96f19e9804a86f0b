#include "gpu/device_gauge.hpp"

#include <algorithm>
#include <chrono>

#include "ddrun/base/text.hpp"
#include "pages.hpp"

namespace ddrun::collectives {

namespace {

constexpr MemoryPass kCopy{"copy", 2};
constexpr MemoryPass kFill{"fill", 1};
constexpr MemoryPass kVerify{"verify", 1};
constexpr MemoryPass kReduce{"reduce", 3};
constexpr std::array kPasses{kCopy, kFill, kVerify, kReduce};

/// Some times as large as the largest second-level cache of a GPU, 126 MB.
constexpr std::uint64_t kUsualBytes = std::uint64_t{512} << 20U;
/// A device that needs longer is broken.
constexpr std::chrono::seconds kGaugeLimit{60};

}  // namespace

DeviceGauge::DeviceGauge(std::shared_ptr<cuda::Device> device, const GpuKernels* kernels)
    : device_(std::move(device)), kernels_(kernels), pattern_(0, 1) {}

std::span<const MemoryPass> DeviceGauge::passes() const {
  return std::span(kPasses).first(kernels_ != nullptr ? kPasses.size() : 1);
}

Result<std::uint64_t> DeviceGauge::suitable_bytes(int ranks) const {
  if (auto used = device_->use(); !used) return tl::unexpected(used.error());
  const auto free = device_->free_memory();
  if (!free) return tl::unexpected(free.error());
  const std::uint64_t fits = *free / 2 / (arrays_.size() * static_cast<std::uint64_t>(ranks));
  return std::max(std::min(kUsualBytes, fits) / kPage * kPage, kPage);
}

Result<void> DeviceGauge::prepare(std::uint64_t bytes) {
  if (auto used = device_->use(); !used) return used;
  Result<void> good;
  const auto make = [&](cuda::Array& to, std::size_t size) {
    auto array = good ? cuda::Array::make(device_, size) : Result<cuda::Array>();
    if (!array) good = tl::unexpected(array.error());
    else to = std::move(*array);
  };
  const auto make_event = [&](std::optional<cuda::Event>& to) {
    if (!good) return;
    auto event = cuda::Event::make(device_, cuda::Event::Kind::timing);
    if (!event) good = tl::unexpected(event.error());
    else to.emplace(std::move(*event));
  };
  for (cuda::Array& array : arrays_) make(array, bytes);
  make_event(start_);
  make_event(end_);
  if (!good) return good;
  if (kernels_ == nullptr) {
    return device_->set(arrays_[0].data(), std::byte{1}, bytes).and_then([&] {
      return device_->wait(cuda::calm, Clock::now() + kGaugeLimit, "setting device memory");
    });
  }
  const std::vector<std::byte> table = GpuKernels::table_of(pattern_.mine());
  const std::array<const std::byte*, 2> inputs{arrays_[0].data(), arrays_[1].data()};
  make(table_, table.size());
  make(counter_, sizeof(std::uint64_t));
  make(inputs_, sizeof(inputs));
  if (!good) return good;
  return device_->copy_to_device(table_.data(), table.data(), table.size())
      .and_then([&] { return device_->copy_to_device(inputs_.data(), inputs.data(), sizeof(inputs)); })
      .and_then([&] { return device_->set(counter_.data(), std::byte{0}, counter_.size()); })
      .and_then([&] { return enqueue(kFill.name); })
      .and_then([&] { return device_->wait(cuda::calm, Clock::now() + kGaugeLimit, "filling device memory"); });
}

Result<MemoryTurn> DeviceGauge::run(const MemoryPass& pass, int times) {
  if (auto used = device_->use(); !used) return tl::unexpected(used.error());
  const auto begin = Clock::now();
  Result<void> done = start_->record();
  for (int i = 0; i < times && done; ++i) done = enqueue(pass.name);
  done = done.and_then([&] { return end_->record(); }).and_then([&] {
    return end_->wait(cuda::calm, Clock::now() + kGaugeLimit, concat("measuring device memory, ", pass.name));
  });
  if (done && pass.name == kVerify.name) done = check_counter();
  if (!done) return tl::unexpected(done.error());
  const auto took = end_->microseconds_since(*start_);
  if (!took) return tl::unexpected(took.error());
  const std::chrono::duration<double, std::micro> length(*took);
  return MemoryTurn{begin, begin + std::chrono::duration_cast<Clock::duration>(length)};
}

Result<void> DeviceGauge::enqueue(std::string_view name) const {
  const std::span<std::byte> data(arrays_[0].data(), arrays_[0].size());
  if (name == kCopy.name) return device_->copy(arrays_[1].data(), data.data(), data.size());
  if (name == kFill.name) return kernels_->fill(data, pattern_.mine(), table_.data(), 0);
  if (name == kVerify.name) return kernels_->count_wrong(data, pattern_.mine(), table_.data(), 0, counter_.data());
  return kernels_->reduce(inputs_.data(), 2, arrays_[2].data(), data.size() / sizeof(float), DataType::float32,
                          ReduceOp::sum);
}

/// A kernel that is fast because it does not look is not worth a number.
Result<void> DeviceGauge::check_counter() {
  std::uint64_t wrong = 0;
  return device_->copy_to_host(&wrong, counter_.data(), sizeof(wrong))
      .and_then([&] { return device_->wait(cuda::calm, Clock::now() + kGaugeLimit, "copying from the device"); })
      .and_then([&]() -> Result<void> {
        if (wrong == 0) return {};
        return fail(Errc::unavailable, concat("the kernel that verifies found ", wrong, " wrong elements on ",
                                              device_->name(), " where there is none"));
      });
}

}  // namespace ddrun::collectives
