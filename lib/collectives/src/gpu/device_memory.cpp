#include "gpu/device_memory.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "ddrun/base/text.hpp"
#include "ddrun/collectives/pattern.hpp"

namespace ddrun::collectives {

namespace {

constexpr MemoryPass copy_pass{"copy", 2};
constexpr MemoryPass fill_pass{"fill", 1};
constexpr MemoryPass verify_pass{"verify", 1};
constexpr MemoryPass reduce_pass{"reduce", 3};
constexpr std::array all_passes{copy_pass, fill_pass, verify_pass, reduce_pass};

/// Some times as large as the largest second-level cache of a GPU, 126 MB.
constexpr std::uint64_t usual_bytes = std::uint64_t{512} << 20U;
/// A device that needs longer is broken.
constexpr std::chrono::seconds gauge_limit{60};

/// Times, by the device's own clock, copies that the driver makes within the device's memory, and our kernels: filling,
/// verifying (which has to find every element right) and reducing two arrays into a third.
class DeviceGauge final : public MemoryGauge {
 public:
  /// `kernels` outlives this; null: only copies are timed.
  DeviceGauge(std::shared_ptr<cuda::Device> device, const GpuKernels* kernels);

  [[nodiscard]] std::string memory() const override { return device_->name(); }
  [[nodiscard]] double peak() const override { return device_->peak_bandwidth(); }
  [[nodiscard]] std::span<const MemoryPass> passes() const override;
  [[nodiscard]] Result<std::uint64_t> suitable_bytes(int ranks) const override;
  [[nodiscard]] Result<void> prepare(std::uint64_t bytes) override;
  [[nodiscard]] Result<MemoryTurn> run(const MemoryPass& pass, int times) override;

 private:
  [[nodiscard]] Result<void> enqueue(std::string_view name) const;
  [[nodiscard]] Result<void> wait(const cuda::Event& event) const;
  [[nodiscard]] Result<void> check_counter();

  std::shared_ptr<cuda::Device> device_;
  const GpuKernels* kernels_;
  ExactPattern pattern_;
  std::array<cuda::Array, 3> arrays_;
  cuda::Array table_;    ///< the pattern's
  cuda::Array counter_;  ///< of wrong elements
  cuda::Array inputs_;   ///< addresses of what is reduced
  std::optional<cuda::Event> start_;
  std::optional<cuda::Event> end_;
};

DeviceGauge::DeviceGauge(std::shared_ptr<cuda::Device> device, const GpuKernels* kernels)
    : device_(std::move(device)), kernels_(kernels), pattern_(0, 1) {}

std::span<const MemoryPass> DeviceGauge::passes() const {
  return std::span(all_passes).first(kernels_ != nullptr ? all_passes.size() : 1);
}

Result<std::uint64_t> DeviceGauge::suitable_bytes(int ranks) const {
  if (auto used = device_->use(); !used) return tl::unexpected(used.error());
  const auto free = device_->free_memory();
  if (!free) return tl::unexpected(free.error());
  const std::uint64_t fits = *free / 2 / (arrays_.size() * static_cast<std::uint64_t>(ranks));
  return std::max(std::min(usual_bytes, fits) / page_bytes * page_bytes, page_bytes);
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
      return device_->wait(cuda::calm, Clock::now() + gauge_limit, "setting device memory");
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
      .and_then([&] { return enqueue(fill_pass.name); })
      .and_then([&] { return device_->wait(cuda::calm, Clock::now() + gauge_limit, "filling device memory"); });
}

Result<MemoryTurn> DeviceGauge::run(const MemoryPass& pass, int times) {
  if (auto used = device_->use(); !used) return tl::unexpected(used.error());
  const auto begin = Clock::now();
  Result<void> done = start_->record();
  for (int i = 0; i < times && done; ++i) done = enqueue(pass.name);
  done = done.and_then([&] { return end_->record(); }).and_then([&] {
    return end_->wait(cuda::calm, Clock::now() + gauge_limit, concat("measuring device memory, ", pass.name));
  });
  if (done && pass.name == verify_pass.name) done = check_counter();
  if (!done) return tl::unexpected(done.error());
  const auto took = end_->microseconds_since(*start_);
  if (!took) return tl::unexpected(took.error());
  const std::chrono::duration<double, std::micro> length(*took);
  return MemoryTurn{begin, begin + std::chrono::duration_cast<Clock::duration>(length)};
}

Result<void> DeviceGauge::enqueue(std::string_view name) const {
  const std::span<std::byte> data(arrays_[0].data(), arrays_[0].size());
  if (name == copy_pass.name) return device_->copy(arrays_[1].data(), data.data(), data.size());
  if (name == fill_pass.name) return kernels_->fill(data, pattern_.mine(), table_.data(), 0);
  if (name == verify_pass.name) return kernels_->count_wrong(data, pattern_.mine(), table_.data(), 0, counter_.data());
  return kernels_->reduce(inputs_.data(), 2, arrays_[2].data(), data.size() / sizeof(float), DataType::float32,
                          ReduceOp::sum);
}

/// A kernel that is fast because it does not look is not worth a number.
Result<void> DeviceGauge::check_counter() {
  std::uint64_t wrong = 0;
  return device_->copy_to_host(&wrong, counter_.data(), sizeof(wrong))
      .and_then([&] { return device_->wait(cuda::calm, Clock::now() + gauge_limit, "copying from the device"); })
      .and_then([&]() -> Result<void> {
        if (wrong == 0) return {};
        return fail(Errc::unavailable, concat("the kernel that verifies found ", wrong, " wrong elements on ",
                                              device_->name(), " where there is none"));
      });
}

/// No filling or comparing takes that long; a device that needs longer is broken.
constexpr std::chrono::seconds work_limit{60};
constexpr std::size_t max_tables = 32;
constexpr std::size_t copied_at_once = std::size_t{4} << 20;

}  // namespace

Result<std::unique_ptr<DeviceMemory>> DeviceMemory::make(std::shared_ptr<cuda::Device> device) {
  std::unique_ptr<DeviceMemory> made(new DeviceMemory(device));
  auto kernels = GpuKernels::load(device);
  if (!kernels) return tl::unexpected(kernels.error());
  made->kernels_ = std::move(*kernels);
  if (!made->kernels_) return made;
  auto counter = cuda::Array::make(std::move(device), sizeof(std::uint64_t));
  if (!counter) return tl::unexpected(counter.error());
  made->counter_ = std::move(*counter);
  if (auto good = made->try_out(); !good) return tl::unexpected(good.error());
  return made;
}

Result<void> DeviceMemory::wait(const std::string& what) const {
  return device_->wait(cuda::calm, Clock::now() + work_limit, what);
}

bool DeviceMemory::suits(const Sequence& sequence) const {
  return kernels_ && GpuKernels::table_bytes(sequence) <= static_cast<std::size_t>(device_->max_shared_memory());
}

Result<void> DeviceMemory::fill(std::span<std::byte> data, const Sequence& sequence, std::uint64_t first) {
  if (auto used = device_->use(); !used) return used;
  if (suits(sequence)) {
    const auto table = table_of(sequence);
    if (!table) return tl::unexpected(table.error());
    if (auto done = kernels_->fill(data, sequence, (*table)->data(), first); !done) return done;
    return wait("filling device memory");
  }
  const std::size_t element = size_of(sequence.type());
  piece_.resize(std::min(copied_at_once, data.size()));
  for (std::size_t done = 0; done < data.size(); done += piece_.size()) {
    const auto part = std::span(piece_).first(std::min(piece_.size(), data.size() - done));
    sequence.fill(part, first + done / element);
    if (auto written = write(data.subspan(done, part.size()), part); !written) return written;
  }
  return {};
}

Result<std::uint64_t> DeviceMemory::count_wrong(std::span<const std::byte> data, const Sequence& sequence,
                                                std::uint64_t first) {
  if (auto used = device_->use(); !used) return tl::unexpected(used.error());
  std::uint64_t wrong = 0;
  if (suits(sequence)) {
    const auto table = table_of(sequence);
    if (!table) return tl::unexpected(table.error());
    const auto failed = [](const Result<void>& result) { return tl::unexpected(result.error()); };
    if (auto zero = device_->set(counter_.data(), std::byte{0}, counter_.size()); !zero) return failed(zero);
    if (auto done = kernels_->count_wrong(data, sequence, (*table)->data(), first, counter_.data()); !done) {
      return failed(done);
    }
    if (auto got = device_->copy_to_host(&wrong, counter_.data(), sizeof(wrong)); !got) return failed(got);
    if (auto done = wait("comparing device memory"); !done) return failed(done);
    return wrong;
  }
  const std::size_t element = size_of(sequence.type());
  piece_.resize(std::min(copied_at_once, data.size()));
  for (std::size_t done = 0; done < data.size(); done += piece_.size()) {
    const auto part = std::span(piece_).first(std::min(piece_.size(), data.size() - done));
    if (auto got = read(part, data.subspan(done, part.size())); !got) return tl::unexpected(got.error());
    wrong += sequence.count_wrong(part, first + done / element);
  }
  return wrong;
}

Result<void> DeviceMemory::set(std::span<std::byte> data, std::byte value) {
  if (auto used = device_->use(); !used) return used;
  if (auto done = device_->set(data.data(), value, data.size()); !done) return done;
  return wait("setting device memory");
}

Result<void> DeviceMemory::read(std::span<std::byte> to, std::span<const std::byte> from) {
  if (auto used = device_->use(); !used) return used;
  if (auto done = device_->copy_to_host(to.data(), from.data(), from.size()); !done) return done;
  return wait("copying from the device");
}

Result<void> DeviceMemory::write(std::span<std::byte> to, std::span<const std::byte> from) {
  if (auto used = device_->use(); !used) return used;
  if (auto done = device_->copy_to_device(to.data(), from.data(), from.size()); !done) return done;
  return wait("copying to the device");
}

std::unique_ptr<MemoryGauge> DeviceMemory::gauge() {
  return std::make_unique<DeviceGauge>(device_, kernels_ ? &*kernels_ : nullptr);
}

Result<void> DeviceMemory::reduce(const std::vector<const std::byte*>& in, std::byte* out, std::size_t count,
                                  DataType type, ReduceOp op) {
  if (!kernels_) return fail(Errc::unsupported, "this build has no kernels for GPUs");
  if (auto used = device_->use(); !used) return used;
  const std::size_t bytes = in.size() * sizeof(in[0]);
  auto inputs = cuda::Array::make(device_, bytes);
  if (!inputs) return tl::unexpected(inputs.error());
  if (auto done = device_->copy_to_device(inputs->data(), in.data(), bytes); !done) return done;
  if (auto done = kernels_->reduce(inputs->data(), in.size(), out, count, type, op); !done) return done;
  return wait("reducing device memory");
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
  auto array = cuda::Array::make(device_, content.size());
  if (!array) return tl::unexpected(array.error());
  if (auto done = write({array->data(), content.size()}, content); !done) return tl::unexpected(done.error());
  tables_.push_back({{sequence.period().begin(), sequence.period().end()}, std::move(*array)});
  return &tables_.back().array;
}

/// A comparison that never finds anything would say that all is well.
Result<void> DeviceMemory::try_out() {
  constexpr std::size_t trial_length = 101;
  constexpr std::size_t trial_count = 40'009;
  constexpr std::size_t trial_wrong = 20'011;
  std::vector<std::byte> period(trial_length * sizeof(std::uint32_t));
  for (std::size_t i = 0; i < trial_length; ++i) {
    const auto number = static_cast<std::uint32_t>(i * 2654435761U + 1);
    std::memcpy(period.data() + i * sizeof(number), &number, sizeof(number));
  }
  const Sequence sequence(DataType::uint32, std::move(period));
  auto array = cuda::Array::make(device_, trial_count * sizeof(std::uint32_t));
  if (!array) return tl::unexpected(array.error());
  const std::span<std::byte> data(array->data(), array->size());
  if (auto filled = fill(data, sequence, 5); !filled) return filled;
  std::vector<std::byte> copy(data.size());
  if (auto got = read(copy, data); !got) return got;
  const std::uint64_t wrong_by_host = sequence.count_wrong(copy, 5);
  const auto right = count_wrong(data, sequence, 5);
  if (!right) return tl::unexpected(right.error());
  std::byte& element = copy[trial_wrong * sizeof(std::uint32_t)];
  element ^= std::byte{1};
  if (auto put = write(data.subspan(trial_wrong * sizeof(std::uint32_t), 1), {&element, 1}); !put) return put;
  const auto wrong = count_wrong(data, sequence, 5);
  if (!wrong) return tl::unexpected(wrong.error());
  if (wrong_by_host == 0 && *right == 0 && *wrong == 1) return {};
  return fail(Errc::unavailable,
              concat("the kernels do not work on ", device_->name(), ": ", wrong_by_host, " elements filled wrong, ",
                     *right, " and ", *wrong, " found wrong where there are 0 and 1"));
}

}  // namespace ddrun::collectives
