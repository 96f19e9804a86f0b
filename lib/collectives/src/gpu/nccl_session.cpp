#include "gpu/nccl_session.hpp"

#include <cassert>
#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <utility>

#include "ddrun/base/event_thread.hpp"
#include "ddrun/base/text.hpp"
#include "gpu/nccl_rendezvous.hpp"

namespace ddrun::collectives {

namespace {

/// How late an abort may be. Often enough for deadlines of seconds, too rare to disturb a measurement.
constexpr Milliseconds watchdog_interval{50};

/// Time limits of an orderly end and of an abort.
constexpr std::chrono::seconds finish_limit{5};
constexpr std::chrono::seconds abort_limit{10};

nccl::Status async_status(const nccl::Library& library, nccl::Comm comm) {
  nccl::Status state = nccl::success;
  const nccl::Status status = library.comm_get_async_error(comm, &state);
  return status == nccl::success ? state : status;
}

}  // namespace

/// Everything is guarded by the mutex. The last action runs without it.
struct Watchdog::Shared {
  void run();

  AsyncError async_error;
  Action abort;
  std::mutex mutex{};
  std::condition_variable changed{};
  State state = State::idle;
  Deadline deadline{};
  std::optional<Error> cause{};
  Action last{};
};

void Watchdog::Shared::run() {
  std::unique_lock lock(mutex);
  while (state != State::ending) {
    changed.wait_for(lock, watchdog_interval);
    if (state != State::armed) continue;
    // An exited peer explains a late call, so it is looked for first.
    cause = async_error();
    if (!cause && Clock::now() >= deadline) cause = Error{Errc::timeout, "a call did not return in time"};
    if (!cause) continue;
    last = abort;
    state = State::ending;
  }
  lock.unlock();
  if (last) last();
  lock.lock();
  state = State::ended;
  changed.notify_all();
}

Result<std::unique_ptr<Watchdog>> Watchdog::start(AsyncError async_error, Action abort) {
  const std::shared_ptr<Shared> shared(new Shared{std::move(async_error), std::move(abort)});
  std::unique_ptr<Watchdog> made(new Watchdog(shared));
  made->thread_ = TRY(start_thread_signals_blocked("nccl-watchdog", [shared] { shared->run(); }));
  return made;
}

Watchdog::~Watchdog() {
  if (!thread_.joinable()) return;
  std::unique_lock lock(shared_->mutex);
  const bool is_stuck = shared_->state == State::ending;
  if (shared_->state == State::idle) shared_->state = State::ending;
  shared_->async_error = nullptr;
  shared_->changed.notify_all();
  lock.unlock();
  if (is_stuck) thread_.detach();
  else thread_.join();
}

void Watchdog::assert_owner() const { assert(std::this_thread::get_id() == owner_); }

void Watchdog::arm(Deadline deadline) {
  assert_owner();
  const std::lock_guard lock(shared_->mutex);
  assert(shared_->state == State::idle);
  shared_->deadline = deadline;
  shared_->state = State::armed;
}

std::optional<Error> Watchdog::disarm() {
  assert_owner();
  const std::lock_guard lock(shared_->mutex);
  if (shared_->state != State::armed) return shared_->cause;
  shared_->state = State::idle;
  return std::nullopt;
}

bool Watchdog::end(Action last, Milliseconds limit) {
  assert_owner();
  std::unique_lock lock(shared_->mutex);
  assert(shared_->state != State::armed);
  if (shared_->state == State::idle) {
    shared_->last = std::move(last);
    shared_->state = State::ending;
    shared_->changed.notify_all();
  }
  return shared_->changed.wait_for(lock, limit, [&] { return shared_->state == State::ended; });
}

/// An exited peer or an error of NCCL.
std::optional<Error> NcclSession::async_error(Communicator& control, const Handles& handles) {
  // An exited peer is the cause of NCCL's own errors, so it is checked first.
  if (auto error = control.async_error()) return error;
  const nccl::Status status = async_status(handles.library, handles.comm);
  if (status == nccl::success || status == nccl::in_progress) return std::nullopt;
  return Error{Errc::unavailable, handles.library.describe("NCCL", status, handles.comm)};
}

void NcclSession::Handles::abort() const {
  if (!device->use()) return;
  for (nccl::Comm one : {comm, parent}) {
    if (one != nullptr) (void)library.comm_abort(one);
  }
}

/// A peer may already have exited; that is not an error here.
void NcclSession::Handles::destroy() const {
  if (!device->use()) return;
  for (void* const handle : registered) (void)library.comm_deregister(comm, handle);
  (void)library.comm_finalize(comm);
  (void)library.comm_destroy(comm);
  // It has no work. ncclCommAbort() blocks even so, while ncclCommFinalize() would have to be polled.
  if (parent != nullptr) (void)library.comm_abort(parent);
}

Result<std::unique_ptr<NcclSession>> NcclSession::start(const Group& group, const nccl::Library& library,
                                                        std::shared_ptr<cuda::Device> device,
                                                        std::shared_ptr<Communicator> control,
                                                        std::vector<nccl::UniqueId> ids, Deadline deadline) {
  const std::shared_ptr<Handles> handles(new Handles{library, std::move(device)});
  std::unique_ptr<NcclSession> made(new NcclSession(control, handles));
  made->watchdog_ = TRY(
      Watchdog::start([control, handles] { return async_error(*control, *handles); }, [handles] { handles->abort(); }));

  FailureBoard board(group);
  bool others_failed = false;
  const auto cancel_check = [&]() -> Result<void> {
    if (auto error = control->async_error()) return tl::unexpected(std::move(*error));
    auto failure = board.failure();
    if (!failure) return {};
    others_failed = true;
    return tl::unexpected(std::move(*failure));
  };
  const auto ready = library.comm_split != nullptr ? made->init(group, std::move(ids), cancel_check, deadline)
                                                   : made->init_in_thread(group, ids[0], cancel_check, deadline);
  if (ready) return made;
  if (!others_failed) board.report(ready.error());
  made->abort();
  return tl::unexpected(ready.error());
}

Result<void> NcclSession::init(const Group& group, std::vector<nccl::UniqueId> ids,
                               const cuda::CancelCheck& cancel_check, Deadline deadline) {
  nccl::Comm* const parent = &handles_->parent;
  nccl::Config config;
  config.blocking = 0;
  const bool several = ids.size() > 1;
  const char* const what = several ? "ncclCommInitRankScalable" : "ncclCommInitRankConfig";
  nccl::Status status = several ? library().comm_init_rank_scalable(parent, group.size, group.rank,
                                                                    static_cast<int>(ids.size()), ids.data(), &config)
                                : library().comm_init_rank_config(parent, group.size, ids[0], group.rank, &config);
  TRY(wait_parent(what, status, cancel_check, deadline));
  config = {};
  config.blocking = 1;
  status = library().comm_split(*parent, 0, group.rank, &handles_->comm, &config);
  return wait_parent("ncclCommSplit", status, cancel_check, deadline);
}

Result<void> NcclSession::init_in_thread(const Group& group, const nccl::UniqueId& id,
                                         const cuda::CancelCheck& cancel_check, Deadline deadline) {
  const std::string what = "ncclCommInitRankConfig";
  auto returned = std::make_shared<std::promise<nccl::Status>>();
  auto status = returned->get_future();
  auto thread = TRY(start_thread_signals_blocked(
      "nccl-init", [returned, handles = handles_, id, size = group.size, rank = group.rank] {
        nccl::Config config;
        config.blocking = 1;
        const bool usable = handles->device->use().has_value();
        returned->set_value(usable ? handles->library.comm_init_rank_config(&handles->comm, size, id, rank, &config)
                                   : nccl::unhandled_cuda_error);
      }));
  const auto done = [&]() -> Result<bool> {
    return status.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  };
  if (auto waited = cuda::wait_until(done, cancel_check, deadline, what); !waited) {
    // Nothing can abort a communicator that another thread is still making.
    handles_->device->mark_unusable();
    thread.detach();
    return waited;
  }
  thread.join();
  const nccl::Status result = status.get();
  if (result == nccl::success) return {};
  return fail(Errc::unavailable, library().describe(what, result, handles_->comm));
}

/// A split follows the mode of the communicator that is split.
Result<void> NcclSession::wait_parent(const std::string& what, nccl::Status status,
                                      const cuda::CancelCheck& cancel_check, Deadline deadline) {
  const nccl::Comm parent = handles_->parent;
  const auto done = [&]() -> Result<bool> {
    if (status == nccl::in_progress) status = async_status(library(), parent);
    if (status == nccl::in_progress) return false;
    if (status == nccl::success) return true;
    return fail(Errc::unavailable, library().describe(what, status, parent));
  };
  return cuda::wait_until(done, cancel_check, deadline, what);
}

NcclSession::~NcclSession() {
  const bool running = watchdog_ != nullptr && !handles_->device->is_unusable() && handles_->comm != nullptr;
  if (running && !watchdog_->end([handles = handles_] { handles->destroy(); }, finish_limit)) {
    handles_->device->mark_unusable();
  }
}

Result<void> NcclSession::cancel_reason() {
  if (auto error = async_error(*control_, *handles_)) return tl::unexpected(std::move(*error));
  return {};
}

bool NcclSession::register_memory(std::byte* memory, std::size_t bytes) {
  void* handle = nullptr;
  if (library().comm_register(comm(), memory, bytes, &handle) != nccl::success) return false;
  // NCCL succeeds without a handle where it registers nothing, such as with NCCL_LOCAL_REGISTER=0.
  if (handle != nullptr) handles_->registered.push_back(handle);
  return handle != nullptr;
}

void NcclSession::abort() {
  if (handles_->device->is_unusable()) return;
  if (graph_ != nullptr) {
    // The driver may wait for the graph's work, which ends only with the abort. NCCL waits for the graph.
    auto thread = start_thread_signals_blocked("nccl-graph",
                                               [graph = std::exchange(graph_, nullptr)]() mutable { graph.reset(); });
    if (thread) thread->detach();
  }
  if (!watchdog_->end([handles = handles_] { handles->abort(); }, abort_limit)) handles_->device->mark_unusable();
}

}  // namespace ddrun::collectives
