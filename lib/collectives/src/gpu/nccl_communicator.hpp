#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "back_ends.hpp"
#include "ddrun/collectives/communicator.hpp"
#include "gpu/cuda.hpp"
#include "gpu/device_memory.hpp"
#include "gpu/nccl_library.hpp"
#include "gpu/nccl_session.hpp"
#include "gpu/survey.hpp"

namespace ddrun::collectives {

/// The two buffers on the device: from ncclMemAlloc() where the library has it, so that they can be registered, else
/// from the driver.
class NcclBuffers {
 public:
  /// Fails with `invalid_argument` if the device has not as much memory free, before anything is taken.
  [[nodiscard]] static Result<NcclBuffers> make(const nccl::Library& library, std::shared_ptr<cuda::Device> device,
                                                std::size_t bytes);
  NcclBuffers(NcclBuffers&& other) noexcept;
  NcclBuffers& operator=(NcclBuffers&&) = delete;
  ~NcclBuffers();

  [[nodiscard]] std::span<std::byte> send() const { return {data_[0], bytes_}; }
  [[nodiscard]] std::span<std::byte> recv() const { return {data_[1], bytes_}; }
  /// Whether they can be registered.
  [[nodiscard]] bool are_nccls() const { return free_ != nullptr; }

 private:
  NcclBuffers(std::shared_ptr<cuda::Device> device, std::size_t bytes) : device_(std::move(device)), bytes_(bytes) {}

  std::shared_ptr<cuda::Device> device_;
  std::size_t bytes_;
  std::array<std::byte*, 2> data_{};
  std::array<cuda::Array, 2> arrays_;
  nccl::MemFree* free_ = nullptr;
};

/// Collectives between GPUs by NVIDIA's library. Buffers are device memory; before each call the ranks compare, through
/// the control communicator, that all make the same one. What is timed is timed by the device.
class NcclCommunicator final : public Communicator {
 public:
  /// This rank's GPU is `device` among those of `survey`. Every rank calls it; a failure of one is one of all.
  [[nodiscard]] static Result<std::unique_ptr<Communicator>> connect(const Group& group,
                                                                     const CommunicatorOptions& options,
                                                                     const GpuPlan& plan,
                                                                     std::shared_ptr<Communicator> control,
                                                                     Deadline deadline);
  ~NcclCommunicator() override;

  [[nodiscard]] std::string_view name() const override { return "nccl"; }
  [[nodiscard]] std::string details() const override { return details_; }
  [[nodiscard]] std::optional<Error> trouble() override { return control_->trouble(); }
  [[nodiscard]] std::string lacks(Collective collective, DataType type, ReduceOp op, bool in_place) const override;
  [[nodiscard]] std::span<std::byte> send_buffer() override { return buffers_.send(); }
  [[nodiscard]] std::span<std::byte> recv_buffer() override { return buffers_.recv(); }
  [[nodiscard]] Memory& memory() override { return *memory_; }

 private:
  struct Local;
  NcclCommunicator(const Group& group, const CommunicatorOptions& options, Local local,
                   std::unique_ptr<NcclSession> session, std::shared_ptr<Communicator> control);

  [[nodiscard]] Result<void> run(const Call& call, Deadline deadline) override;
  [[nodiscard]] Result<double> run_timed(const Call& call, int times, Milliseconds timeout) override;

  [[nodiscard]] Call on_device(const Call& call) const;
  [[nodiscard]] Result<void> agree_on(const Call& call, Deadline deadline);
  [[nodiscard]] Result<void> enqueue(const Call& call, Deadline deadline);
  [[nodiscard]] nccl::Status exchange_blocks(const Call& call);
  [[nodiscard]] Result<void> wait_for(const cuda::Event& event, const Call& call, Deadline deadline);
  [[nodiscard]] Result<double> time_calls(const Call& call, int times, Milliseconds timeout);
  [[nodiscard]] Result<double> time_graph(const Call& call, int times, Milliseconds timeout);
  template <class Value>
  [[nodiscard]] Result<Value> aborted(Result<Value> result);

  std::shared_ptr<Communicator> control_;
  std::shared_ptr<cuda::Device> device_;
  std::unique_ptr<DeviceMemory> memory_;
  NcclBuffers buffers_;
  cuda::Array nothing_;  ///< what barriers sum
  cuda::Event start_;
  cuda::Event end_;
  std::vector<cuda::Event> marks_;
  std::unique_ptr<NcclSession> session_;  ///< last: it ends before what it uses
  bool waits_for_each_;
  int graph_launches_;
  double last_call_microseconds_ = 0;  ///< 0: unknown
  std::string details_;
};

/// The row of this back end: where there is a GPU for each rank, and NCCL.
[[nodiscard]] Result<std::string> probe_nccl();
/// Where NCCL might refuse it is not chosen, but who asks for it gets it if NCCL can.
[[nodiscard]] Suits suits_nccl(const Ranks& ranks);
[[nodiscard]] Result<Chosen> connect_nccl(const Ranks& ranks, Deadline deadline);

}  // namespace ddrun::collectives
