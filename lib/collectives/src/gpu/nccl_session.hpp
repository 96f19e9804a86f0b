#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/collectives/communicator.hpp"
#include "gpu/cuda.hpp"
#include "gpu/nccl_library.hpp"

namespace ddrun::collectives {

/// A thread that ends the owner's calls of a library that have no time limit of their own: at the call's deadline or on
/// an asynchronous error it aborts. It polls, so arm() and disarm() cost some ten nanoseconds each.
///
/// The owner's thread, which called start(), calls everything here; the actions run on the watchdog's thread. A
/// last action that does not return is left behind with its thread, so it holds what it uses by shared_ptr.
class Watchdog {
 public:
  using AsyncError = std::function<std::optional<Error>()>;
  using Action = std::function<void()>;

  /// `async_error` is called only between arm() and disarm(), never while the owner is in either; it must not block.
  /// `abort` is called at most once, last. Fails with `unavailable` if there can be no thread.
  [[nodiscard]] static Result<std::unique_ptr<Watchdog>> start(AsyncError async_error, Action abort);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog();

  /// Before a call that may block. Not after an abort.
  void arm(Deadline deadline);
  /// After it. The cause if the watchdog has begun to abort: `timeout`, or what async_error() returned.
  [[nodiscard]] std::optional<Error> disarm();

  /// Runs `last` on the watchdog's thread, or waits for an abort that has begun. False if it has not returned within
  /// `limit`; it is then left behind.
  [[nodiscard]] bool end(Action last, Milliseconds limit);

 private:
  enum class State : unsigned char {
    idle,    ///< the owner is in no call
    armed,   ///< the owner is in a call
    ending,  ///< the last action is due or running
    ended,   ///< it has returned
  };
  struct Shared;

  explicit Watchdog(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  void assert_owner() const;

  std::shared_ptr<Shared> shared_;
  std::thread::id owner_ = std::this_thread::get_id();
  std::thread thread_;
};

/// One rank's NCCL communicator, from bootstrap to destruction, so that nothing blocks forever.
///
/// Collectives run on a communicator whose calls block, as on one whose calls do not NCCL starts a thread for each. It
/// is split off one that does not block, which is polled until it is connected; before NCCL 2.18 it is connected in a
/// helper thread. From then on a watchdog aborts NCCL where a call does not return.
///
/// All functions are for the thread that called start().
class NcclSession {
 public:
  /// Blocks until all ranks have joined. `ids` are equal on all ranks; several (NCCL 2.23 or later) share the load of a
  /// large group. Fails on all ranks if it fails on one.
  [[nodiscard]] static Result<std::unique_ptr<NcclSession>> start(const Group& group, const nccl::Library& library,
                                                                  std::shared_ptr<cuda::Device> device,
                                                                  std::shared_ptr<Communicator> control,
                                                                  std::vector<nccl::UniqueId> ids, Deadline deadline);
  NcclSession(const NcclSession&) = delete;
  NcclSession& operator=(const NcclSession&) = delete;
  /// Waits some seconds for NCCL to end in order.
  ~NcclSession();

  [[nodiscard]] const nccl::Library& library() const { return handles_->library; }
  /// Its calls block; make them within guard().
  [[nodiscard]] nccl::Comm comm() const { return handles_->comm; }

  /// Makes a call of NCCL or of the driver and returns its status. NCCL is aborted at the deadline, or if a peer exits;
  /// then returns `timeout` or the error, and only abort() may follow.
  template <class Do>
  [[nodiscard]] Result<int> guard(Deadline deadline, Do call) {
    watchdog_->arm(deadline);
    const int status = call();
    if (auto cause = watchdog_->disarm()) return tl::unexpected(std::move(*cause));
    return status;
  }
  /// A CancelCheck: an exited peer or an error of NCCL.
  [[nodiscard]] Result<void> cancel_reason();
  /// Keeps a graph of NCCL's calls until the next hold(): NCCL ends only after the last such graph, which abort()
  /// therefore destroys.
  void hold(std::shared_ptr<cuda::GraphExecState> graph) { graph_ = std::move(graph); }
  /// After a failure. Stops the work on the device if NCCL can; else marks the device unusable.
  void abort();

  /// Registers `memory` with the network and the other GPUs. False if it is not registered; it is then used as it is.
  [[nodiscard]] bool register_memory(std::byte* memory, std::size_t bytes);

 private:
  /// Also used by threads that are left behind.
  struct Handles {
    nccl::Library library;
    std::shared_ptr<cuda::Device> device;
    nccl::Comm parent = nullptr;  ///< its calls do not block
    nccl::Comm comm = nullptr;
    std::vector<void*> registered{};

    // On the watchdog's thread.
    void abort() const;
    void destroy() const;
  };

  NcclSession(std::shared_ptr<Communicator> control, std::shared_ptr<Handles> handles)
      : control_(std::move(control)), handles_(std::move(handles)) {}
  [[nodiscard]] static std::optional<Error> async_error(Communicator& control, const Handles& handles);
  [[nodiscard]] Result<void> init(const Group& group, std::vector<nccl::UniqueId> ids,
                                  const cuda::CancelCheck& cancel_check, Deadline deadline);
  [[nodiscard]] Result<void> init_in_thread(const Group& group, const nccl::UniqueId& id,
                                            const cuda::CancelCheck& cancel_check, Deadline deadline);
  [[nodiscard]] Result<void> wait_parent(const std::string& what, nccl::Status status,
                                         const cuda::CancelCheck& cancel_check, Deadline deadline);

  std::shared_ptr<Communicator> control_;
  std::shared_ptr<Handles> handles_;
  std::unique_ptr<Watchdog> watchdog_;
  std::shared_ptr<cuda::GraphExecState> graph_;
};

}  // namespace ddrun::collectives
