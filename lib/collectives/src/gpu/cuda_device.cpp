#include "gpu/cuda_device.hpp"

#include <array>
#include <utility>

#include "ddrun/base/text.hpp"
#include "waiting.hpp"

namespace ddrun::collectives::cuda {

namespace {

Result<bool> ended(const Driver& driver, Status status, const std::string& what) {
  if (status == kNotReady) return false;
  if (auto good = driver.check(status, what); !good) return tl::unexpected(good.error());
  return true;
}

}  // namespace

Result<std::shared_ptr<Device>> Device::open(Driver driver, int ordinal) {
  std::shared_ptr<Device> made(new Device(std::move(driver)));
  const Driver& d = made->driver_;
  const std::string what = concat("GPU ", ordinal);
  if (auto done = d.check(d.device_get(&made->device_, ordinal), what); !done) return tl::unexpected(done.error());
  std::array<char, 128> name{};
  if (d.device_get_name(name.data(), static_cast<int>(name.size()) - 1, made->device_) == kSuccess) {
    made->name_ = name.data();
  }
  (void)d.device_get_attribute(&made->multiprocessors_, kMultiprocessors, made->device_);
  (void)d.device_get_attribute(&made->most_shared_memory_, kMostSharedMemory, made->device_);
  // The primary context is the one that NCCL uses, too.
  if (auto done = d.check(d.primary_retain(&made->context_, made->device_), what); !done) {
    made->context_ = nullptr;
    return tl::unexpected(done.error());
  }
  if (auto done = made->use(); !done) return tl::unexpected(done.error());
  const Status status = d.stream_create(&made->stream_, kNonBlockingStream);
  if (auto done = d.check(status, "cuStreamCreate"); !done) return tl::unexpected(done.error());
  return made;
}

Device::~Device() {
  if (context_ == nullptr || forsaken_) return;
  if (use() && stream_ != nullptr) (void)driver_.stream_destroy(stream_);
  (void)driver_.primary_release(device_);
}

Result<void> Device::use() const { return driver_.check(driver_.ctx_set_current(context_), "cuCtxSetCurrent"); }

Result<std::size_t> Device::free_memory() const {
  std::size_t free = 0;
  std::size_t total = 0;
  if (auto done = driver_.check(driver_.mem_get_info(&free, &total), "cuMemGetInfo"); !done) {
    return tl::unexpected(done.error());
  }
  return free;
}

double Device::peak_bandwidth() const {
  int kilohertz = 0;
  int bits = 0;
  if (driver_.device_get_attribute(&kilohertz, kMemoryKilohertz, device_) != kSuccess ||
      driver_.device_get_attribute(&bits, kMemoryBits, device_) != kSuccess) {
    return 0;
  }
  return 2.0 * kilohertz * 1e3 * bits / 8 / 1e9;
}

Result<void> Device::copy_to_device(std::byte* to, const void* from, std::size_t bytes) const {
  if (bytes == 0) return {};
  return driver_.check(driver_.copy_to_device(address_of(to), from, bytes, stream_), "cuMemcpyHtoDAsync");
}

Result<void> Device::copy_to_host(void* to, const std::byte* from, std::size_t bytes) const {
  if (bytes == 0) return {};
  return driver_.check(driver_.copy_to_host(to, address_of(from), bytes, stream_), "cuMemcpyDtoHAsync");
}

Result<void> Device::copy(std::byte* to, const std::byte* from, std::size_t bytes) const {
  if (bytes == 0) return {};
  return driver_.check(driver_.copy_on_device(address_of(to), address_of(from), bytes, stream_), "cuMemcpyDtoDAsync");
}

Result<void> Device::set(std::byte* to, std::byte value, std::size_t bytes) const {
  if (bytes == 0) return {};
  const auto byte = static_cast<unsigned char>(value);
  return driver_.check(driver_.set_bytes(address_of(to), byte, bytes, stream_), "cuMemsetD8Async");
}

Result<void> Device::wait(const Alarm& alarm, Deadline deadline, const std::string& what) const {
  return wait_until([&] { return ended(driver_, driver_.stream_query(stream_), what); }, alarm, deadline, what);
}

Result<Array> Array::make(std::shared_ptr<Device> device, std::size_t bytes) {
  Address address = 0;
  const Driver& driver = device->driver();
  const std::size_t some = bytes == 0 ? 1 : bytes;
  if (auto got = driver.check(driver.mem_alloc(&address, some), concat("cuMemAlloc of ", some, " bytes")); !got) {
    return tl::unexpected(got.error());
  }
  Array array;
  array.device_ = std::move(device);
  array.data_ = reinterpret_cast<std::byte*>(address);
  array.bytes_ = bytes;
  return array;
}

Array::Array(Array&& other) noexcept
    : device_(std::move(other.device_)), data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}

Array& Array::operator=(Array&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Array::~Array() {
  if (data_ == nullptr || device_->forsaken()) return;
  if (device_->use()) (void)device_->driver().mem_free(address_of(data_));
}

Result<Event> Event::make(std::shared_ptr<Device> device, Kind kind) {
  Event made;
  const Driver& driver = device->driver();
  const Status status = driver.event_create(&made.event_, kind == Kind::timing ? 0 : kEventWithoutTime);
  if (auto done = driver.check(status, "cuEventCreate"); !done) return tl::unexpected(done.error());
  made.device_ = std::move(device);
  return made;
}

Event::Event(Event&& other) noexcept
    : device_(std::move(other.device_)), event_(std::exchange(other.event_, nullptr)) {}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(event_, other.event_);
  return *this;
}

Event::~Event() {
  if (event_ == nullptr || device_->forsaken()) return;
  if (device_->use()) (void)device_->driver().event_destroy(event_);
}

Result<void> Event::record() const {
  const Driver& driver = device_->driver();
  return driver.check(driver.event_record(event_, device_->stream()), "cuEventRecord");
}

Result<void> Event::wait(const Alarm& alarm, Deadline deadline, const std::string& what) const {
  const Driver& driver = device_->driver();
  return wait_until([&] { return ended(driver, driver.event_query(event_), what); }, alarm, deadline, what);
}

Result<double> Event::microseconds_since(const Event& start) const {
  const Driver& driver = device_->driver();
  float milliseconds = 0;
  const Status status = driver.event_elapsed_time(&milliseconds, start.event_, event_);
  if (auto done = driver.check(status, "cuEventElapsedTime"); !done) return tl::unexpected(done.error());
  return static_cast<double>(milliseconds) * 1e3;
}

}  // namespace ddrun::collectives::cuda
