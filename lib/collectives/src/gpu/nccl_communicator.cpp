#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "back_ends.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/collectives/communicator.hpp"
#include "describe.hpp"
#include "exchange.hpp"
#include "gpu/cuda.hpp"
#include "gpu/device_memory.hpp"
#include "gpu/nccl_library.hpp"
#include "gpu/nccl_rendezvous.hpp"
#include "gpu/nccl_session.hpp"
#include "gpu/survey.hpp"

namespace ddrun::collectives {

namespace {

/// Marks in a stream's work, which show its progress: recorded and waited for in the same order. On one thread.
class EventRing {
 public:
  /// Creates events until there are `count`; call it while no mark is open. Events are kept for the next use.
  [[nodiscard]] Result<void> reserve(const std::shared_ptr<cuda::Device>& device, std::size_t count) {
    while (events_.size() < count) events_.push_back(TRY(cuda::Event::make(device, cuda::Event::Kind::order)));
    return {};
  }

  /// Marks that were recorded and not waited for.
  [[nodiscard]] std::size_t open() const { return recorded_ - passed_; }
  [[nodiscard]] std::size_t size() const { return events_.size(); }

  /// With size() marks open, take the oldest and wait for it first. That limits the work in flight.
  [[nodiscard]] Result<void> record() { return events_[recorded_++ % events_.size()].record(); }
  [[nodiscard]] const cuda::Event& take_oldest() { return events_[passed_++ % events_.size()]; }

 private:
  std::vector<cuda::Event> events_;
  std::size_t recorded_ = 0;
  std::size_t passed_ = 0;
};

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

/// Fails with `invalid_argument` if two buffers of `bytes` for each of `ranks` on the device do not leave room for what
/// NCCL itself allocates. For all of them, so call it before any allocates.
Result<void> check_room(const nccl::Library& library, const cuda::Device& device, std::size_t bytes, int ranks) {
  const auto free = TRY(device.free_memory());
  const std::size_t share = free / static_cast<std::size_t>(ranks);
  // See NcclSession: the one that is used is split off another.
  const std::size_t communicators = library.comm_split != nullptr && library.version < first_lazy_version ? 2 : 1;
  const std::size_t nccl_room = std::min(communicators * max_communicator_room, share / 2);
  if (bytes <= (share - nccl_room) / 2) return {};
  return fail(
      Errc::invalid_argument,
      concat("two buffers of ", bytes >> 20U, " MiB and ", nccl_room >> 20U, " MiB for NCCL do not fit into the ",
             free >> 20U, " MiB that are free on ", device.name(), ranks == 1 ? "" : concat(" for ", ranks, " ranks")));
}

/// The two device buffers.
struct NcclBuffers {
  /// Fails with `unavailable` if the device refuses.
  [[nodiscard]] static Result<NcclBuffers> make(const nccl::Library& library,
                                                const std::shared_ptr<cuda::Device>& device, std::size_t bytes) {
    const std::size_t some = std::max<std::size_t>(bytes, 1);
    NcclBuffers made{memory_of_nccl(library, device, some), memory_of_nccl(library, device, some), bytes, true};
    if (made.send != nullptr && made.recv != nullptr) return made;
    made = {nullptr, nullptr, bytes, false};
    for (std::shared_ptr<std::byte>* const to : {&made.send, &made.recv}) {
      const auto owner = std::make_shared<cuda::Array>(TRY(cuda::Array::make(device, some)));
      *to = {owner, owner->data()};
    }
    return made;
  }

  std::shared_ptr<std::byte> send;
  std::shared_ptr<std::byte> recv;
  std::size_t bytes = 0;
  bool from_nccl = false;  ///< from ncclMemAlloc(), so that they can be registered; else from the driver
};

/// A rank's local objects, made before it connects.
struct Local {
  nccl::Library library;
  std::shared_ptr<cuda::Device> device;
  std::unique_ptr<DeviceMemory> memory;
  NcclBuffers buffers;
  cuda::Array barrier_scratch;  ///< operand of barriers
  cuda::Event start;
  cuda::Event end;

  [[nodiscard]] static Result<Local> make(nccl::Library library, std::shared_ptr<cuda::Device> device,
                                          std::size_t buffer_bytes) {
    auto buffers = TRY(NcclBuffers::make(library, device, buffer_bytes));
    auto memory = TRY(DeviceMemory::make(device));
    auto barrier_scratch = TRY(cuda::Array::make(device, sizeof(float)));
    TRY(memory->set({barrier_scratch.data(), sizeof(float)}, std::byte{0}));
    auto start = TRY(cuda::Event::make(device, cuda::Event::Kind::timing));
    auto end = TRY(cuda::Event::make(device, cuda::Event::Kind::timing));
    return Local{std::move(library),         std::move(device), std::move(memory), std::move(buffers),
                 std::move(barrier_scratch), std::move(start),  std::move(end)};
  }
};

/// Collectives between GPUs by NCCL, on device memory. Before each call the ranks compare their calls through the
/// control communicator. Timed calls are timed on the device.
class NcclCommunicator final : public Communicator {
 public:
  /// Uses GPU `plan.devices[rank]`. Called on every rank; fails on all ranks if it fails on one.
  [[nodiscard]] static Result<std::unique_ptr<Communicator>> connect(const Group& group,
                                                                     const CommunicatorOptions& options,
                                                                     const GpuPlan& plan,
                                                                     std::shared_ptr<Communicator> control,
                                                                     Deadline deadline);

  [[nodiscard]] std::string_view name() const override { return "nccl"; }
  [[nodiscard]] std::string details() const override { return details_; }
  [[nodiscard]] std::optional<Error> async_error() override { return control_->async_error(); }
  [[nodiscard]] std::string unsupported_reason(Collective collective, DataType type, ReduceOp op,
                                               bool in_place) const override;
  [[nodiscard]] std::span<std::byte> send_buffer() override {
    return {local_.buffers.send.get(), local_.buffers.bytes};
  }
  [[nodiscard]] std::span<std::byte> recv_buffer() override {
    return {local_.buffers.recv.get(), local_.buffers.bytes};
  }
  [[nodiscard]] Memory& memory() override { return *local_.memory; }

 private:
  NcclCommunicator(const Group& group, const CommunicatorOptions& options, Local local,
                   std::unique_ptr<NcclSession> session, std::shared_ptr<Communicator> control);

  [[nodiscard]] Result<void> run(const Call& call, Deadline deadline) override;
  [[nodiscard]] Result<double> run_timed(const Call& call, int times, Milliseconds timeout) override;

  [[nodiscard]] Call on_device(const Call& call) const;
  [[nodiscard]] Result<void> check_same_call(const Call& call, Deadline deadline);
  [[nodiscard]] Result<void> enqueue(const Call& call, Deadline deadline);
  [[nodiscard]] nccl::Status start(const Call& call);
  [[nodiscard]] nccl::Status exchange_blocks(const Call& call);
  [[nodiscard]] Result<void> wait_for(const cuda::Event& event, const Call& call, Deadline deadline);
  [[nodiscard]] Result<void> wait_marks(const Call& call, Milliseconds timeout, std::size_t left);
  [[nodiscard]] Result<double> time_calls(const Call& call, int times, Milliseconds timeout);
  [[nodiscard]] Result<double> time_graph(const Call& call, int times, Milliseconds timeout);
  [[nodiscard]] Result<double> time_launches(cuda::GraphExec exec, const Call& call, Milliseconds timeout);
  template <class Value>
  [[nodiscard]] Result<Value> abort_on_error(Result<Value> result);

  std::shared_ptr<Communicator> control_;
  Local local_;
  EventRing marks_;
  std::unique_ptr<NcclSession> session_;  ///< last member: destroyed before what it uses
  bool blocking_;
  int graph_launches_;
  double last_call_microseconds_ = 0;  ///< 0: unknown
  std::string details_;
};

/// Limit of calls between two events when timing several.
constexpr int max_between_marks = 64;
/// Each call must end within the timeout, so the calls between two events may take at most this fraction of it.
constexpr double part_between_marks = 8;

constexpr int number_of(DataType type) { return static_cast<int>(type); }
constexpr int number_of(ReduceOp op) { return static_cast<int>(op); }

}  // namespace

Result<std::unique_ptr<Communicator>> NcclCommunicator::connect(const Group& group, const CommunicatorOptions& options,
                                                                const GpuPlan& plan,
                                                                std::shared_ptr<Communicator> control,
                                                                Deadline deadline) {
  const auto rank = static_cast<std::size_t>(group.rank);
  auto library = nccl::Library::open();
  auto device = cuda::Driver::open().and_then(
      [&](cuda::Driver driver) { return cuda::Device::open(std::move(driver), plan.devices[rank]); });
  Result<void> mine = !library  ? Result<void>(tl::unexpected(library.error()))
                      : !device ? Result<void>(tl::unexpected(device.error()))
                                : check_room(*library, **device, options.buffer_bytes, plan.ranks_on_device[rank]);
  TRY(agree(group, "gpu-room", mine, deadline));
  auto local = Local::make(std::move(*library), std::move(*device), options.buffer_bytes);
  mine = local ? Result<void>() : Result<void>(tl::unexpected(local.error()));
  TRY(agree(group, "gpu", mine, deadline));
  auto ids = TRY(exchange_nccl_ids(group, local->library, ranks_per_nccl_id(local->library), deadline));
  auto session = NcclSession::start(group, local->library, local->device, control, std::move(ids), deadline);
  if (!session) {
    Error error = session.error();
    if (!plan.problem.empty()) error.message += concat("; ", plan.problem);
    return tl::unexpected(error);
  }
  return std::unique_ptr<Communicator>(
      new NcclCommunicator(group, options, std::move(*local), std::move(*session), std::move(control)));
}

NcclCommunicator::NcclCommunicator(const Group& group, const CommunicatorOptions& options, Local local,
                                   std::unique_ptr<NcclSession> session, std::shared_ptr<Communicator> control)
    : Communicator(group.rank, group.size),
      control_(std::move(control)),
      local_(std::move(local)),
      session_(std::move(session)),
      blocking_(options.nccl_blocking),
      graph_launches_(options.nccl_graph_launches),
      details_(concat("NCCL ", nccl::format_version(session_->library().version), ", ", local_.device->name())) {
  if (!local_.memory->lacks_kernels().empty()) {
    details_ += concat(", checked through host memory (", local_.memory->lacks_kernels(), ')');
  }
  const auto registered = [&](const auto& data) { return session_->register_memory(data.get(), local_.buffers.bytes); };
  if (local_.buffers.from_nccl && registered(local_.buffers.send) && registered(local_.buffers.recv))
    details_ += ", buffers registered";
}

std::string NcclCommunicator::unsupported_reason(Collective collective, DataType type, ReduceOp op,
                                                 bool in_place) const {
  if (collective == Collective::barrier) return {};
  if (size() == 1 && in_place) return "one rank in place: nccl does nothing";
  if (in_place && (collective == Collective::all_to_all || collective == Collective::send_recv)) {
    return concat("nccl has no ", name_of(collective), " in place");
  }
  if (reduces(collective) && op == ReduceOp::avg && kind_of(type) == NumberKind::floating &&
      !std::has_single_bit(static_cast<unsigned>(size()))) {
    // NCCL multiplies every input by 1/n before the sum.
    return concat("nccl's average of ", size(), " ranks is rounded more than once: there is no exact result");
  }
  return {};
}

/// After a failure no work may stay on the device that waits for a peer.
template <class Value>
Result<Value> NcclCommunicator::abort_on_error(Result<Value> result) {
  if (!result) session_->abort();
  return result;
}

Call NcclCommunicator::on_device(const Call& call) const {
  if (call.collective != Collective::barrier) return call;
  Call barrier_in_place = call;
  barrier_in_place.in = barrier_in_place.out = local_.barrier_scratch.data();
  return barrier_in_place;
}

Result<void> NcclCommunicator::run(const Call& call, Deadline deadline) {
  TRY(local_.device->use());
  if (auto same = check_same_call(call, deadline); !same) return abort_on_error(same);
  if (auto done = enqueue(on_device(call), deadline); !done) return abort_on_error(done);
  const auto cancel_check = [this] { return session_->cancel_reason(); };
  return abort_on_error(local_.device->wait(cancel_check, deadline, describe(collectives::kind_of(call), call.count)));
}

/// NCCL hangs or corrupts data if ranks make different calls.
Result<void> NcclCommunicator::check_same_call(const Call& call, Deadline deadline) {
  if (size() == 1) return {};
  const std::uint64_t kind = collectives::kind_of(call);
  // The maximum of each number and of its complement, which gives the minimum.
  std::array<std::uint64_t, 4> most{kind, ~kind, call.count, ~call.count};
  const auto words = std::as_writable_bytes(std::span(most));
  TRY(control_->all_reduce(words, words, DataType::uint64, ReduceOp::max, deadline));
  if (most[0] == ~most[1] && most[2] == ~most[3]) return {};
  // All ranks have seen that the calls differ, and now exchange theirs.
  std::vector<std::uint64_t> all(2 * static_cast<std::size_t>(size()));
  all[2 * static_cast<std::size_t>(rank())] = kind;
  all[2 * static_cast<std::size_t>(rank()) + 1] = call.count;
  const auto table = std::as_writable_bytes(std::span(all));
  TRY(control_->all_reduce(table, table, DataType::uint64, ReduceOp::max, deadline));
  for (int peer = 0; peer < size(); ++peer) {
    const std::uint64_t peer_kind = all[2 * static_cast<std::size_t>(peer)];
    const std::uint64_t peer_count = all[2 * static_cast<std::size_t>(peer) + 1];
    if (peer_kind == kind && peer_count == call.count) continue;
    return call_mismatch(peer, static_cast<std::uint32_t>(peer_kind), peer_count, rank(), call);
  }
  return {};
}

/// Sends and receives blocks in one NCCL group. In place, a rank's own block needs no copy.
nccl::Status NcclCommunicator::exchange_blocks(const Call& call) {
  const nccl::Library& nccl = session_->library();
  const int type = number_of(call.type);
  const cuda::Stream stream = local_.device->stream();
  const bool from_all = call.collective == Collective::gather || call.collective == Collective::all_to_all;
  const bool to_all = call.collective == Collective::scatter || call.collective == Collective::all_to_all;
  const bool is_root = rank() == call.root;
  const bool is_in_place = collectives::in_place(call, rank(), size());
  nccl::Status first = nccl.group_start();
  const auto keep = [&](nccl::Status status) {
    if (first == nccl::success) first = status;
  };
  const auto send = [&](int peer, std::size_t block) {
    keep(nccl.send(call.in + block * call.bytes(), call.count, type, peer, session_->comm(), stream));
  };
  const auto receive = [&](int peer, std::size_t block) {
    keep(nccl.recv(call.out + block * call.bytes(), call.count, type, peer, session_->comm(), stream));
  };
  if (call.collective == Collective::send_recv) {
    send(call.to, 0);
    receive(call.from, 0);
  } else {
    for (int peer = 0; peer < size(); ++peer) {
      if (is_in_place && peer == rank()) continue;
      const auto block = static_cast<std::size_t>(peer);
      if (to_all && (call.collective == Collective::all_to_all || is_root)) send(peer, block);
      if (from_all && (call.collective == Collective::all_to_all || is_root)) receive(peer, block);
    }
    const bool own_block_in_place = is_in_place && is_root;
    if (call.collective == Collective::gather && !own_block_in_place) send(call.root, 0);
    if (call.collective == Collective::scatter && !own_block_in_place) receive(call.root, 0);
  }
  const nccl::Status last = nccl.group_end();
  return first != nccl::success ? first : last;
}

/// Called within NcclSession::guard().
nccl::Status NcclCommunicator::start(const Call& call) {
  const nccl::Library& nccl = session_->library();
  const nccl::Comm comm = session_->comm();
  const cuda::Stream stream = local_.device->stream();
  const int type = number_of(call.type);
  const int op = number_of(call.op);
  switch (call.collective) {
    case Collective::barrier:
    case Collective::all_reduce: return nccl.all_reduce(call.in, call.out, call.count, type, op, comm, stream);
    case Collective::broadcast: return nccl.broadcast(call.in, call.out, call.count, type, call.root, comm, stream);
    case Collective::reduce: return nccl.reduce(call.in, call.out, call.count, type, op, call.root, comm, stream);
    case Collective::all_gather: return nccl.all_gather(call.in, call.out, call.count, type, comm, stream);
    case Collective::reduce_scatter: return nccl.reduce_scatter(call.in, call.out, call.count, type, op, comm, stream);
    case Collective::gather:
    case Collective::scatter:
    case Collective::all_to_all:
    case Collective::send_recv: return exchange_blocks(call);
  }
  return nccl::invalid_usage;
}

Result<void> NcclCommunicator::enqueue(const Call& call, Deadline deadline) {
  const auto status = session_->guard(deadline, [&] { return start(call); });
  if (status && *status == nccl::success) return {};
  const std::string what = describe(collectives::kind_of(call), call.count);
  if (status) return fail(Errc::unavailable, session_->library().describe(what, *status, session_->comm()));
  if (status.error().code == Errc::timeout) return fail(Errc::timeout, what + " did not return in time");
  return tl::unexpected(status.error());
}

Result<void> NcclCommunicator::wait_for(const cuda::Event& event, const Call& call, Deadline deadline) {
  const auto cancel_check = [this] { return session_->cancel_reason(); };
  return event.wait(cancel_check, deadline, describe(collectives::kind_of(call), call.count));
}

Result<double> NcclCommunicator::run_timed(const Call& call, int times, Milliseconds timeout) {
  const auto failed = [&](const Result<void>& result) {
    return abort_on_error(Result<double>(tl::unexpected(result.error())));
  };
  if (auto used = local_.device->use(); !used) return failed(used);
  if (auto same = check_same_call(call, Clock::now() + timeout); !same) return failed(same);
  const Call device_call = on_device(call);
  auto took = graph_launches_ > 0 ? time_graph(device_call, times, timeout) : time_calls(device_call, times, timeout);
  if (took) last_call_microseconds_ = std::max(*took / times, 0.1);
  return abort_on_error(std::move(took));
}

/// Waits until no more than `left` marks are open; `timeout` is the limit from each to the next.
Result<void> NcclCommunicator::wait_marks(const Call& call, Milliseconds timeout, std::size_t left) {
  while (marks_.open() > left) TRY(wait_for(marks_.take_oldest(), call, Clock::now() + timeout));
  return {};
}

/// Enqueues calls without waiting; events between them show progress.
Result<double> NcclCommunicator::time_calls(const Call& call, int times, Milliseconds timeout) {
  const double affordable =
      static_cast<double>(timeout.count()) * 1e3 / part_between_marks / std::max(last_call_microseconds_, 0.1);
  int between = static_cast<int>(std::clamp(affordable, 1.0, static_cast<double>(max_between_marks)));
  if (blocking_ || last_call_microseconds_ == 0) between = 1;
  const int marks_needed = blocking_ ? 1 : std::min((times - 1) / between + 1, max_between_marks);
  TRY(marks_.reserve(local_.device, static_cast<std::size_t>(marks_needed)));
  TRY(local_.start.record());
  for (int i = 0; i < times; ++i) {
    TRY(enqueue(call, Clock::now() + timeout));
    if (i % between != between - 1 || i + 1 == times) continue;
    TRY(wait_marks(call, timeout, marks_.size() - 1));
    TRY(marks_.record());
    TRY(wait_marks(call, timeout, blocking_ ? 0 : marks_.size()));
  }
  TRY(local_.end.record());
  TRY(wait_marks(call, timeout, 0));
  TRY(wait_for(local_.end, call, Clock::now() + timeout));
  return local_.end.microseconds_since(local_.start);
}

Result<double> NcclCommunicator::time_graph(const Call& call, int times, Milliseconds timeout) {
  const cuda::Driver& driver = local_.device->driver();
  if (driver.graph_instantiate == nullptr) {
    return fail(Errc::unsupported,
                concat("graphs need a driver for CUDA 11.4, this one is for ", cuda::format_version(driver.version)));
  }
  const auto do_check = [&](cuda::Status status, const char* what) { return driver.check(status, what); };
  // NCCL's setup on the first call must not happen during capture.
  TRY(enqueue(call, Clock::now() + timeout));
  const auto cancel_check = [this] { return session_->cancel_reason(); };
  const std::string words = describe(collectives::kind_of(call), call.count);
  TRY(local_.device->wait(cancel_check, Clock::now() + timeout, words));

  TRY(do_check(driver.begin_capture(local_.device->stream(), cuda::relaxed_capture), "cuStreamBeginCapture"));
  Result<void> captured;
  for (int i = 0; i < times && captured; ++i) captured = enqueue(call, Clock::now() + timeout);
  cuda::Graph graph = nullptr;
  const auto ended = do_check(driver.end_capture(local_.device->stream(), &graph), "cuStreamEndCapture");
  if (!captured || !ended) {
    if (graph != nullptr) (void)driver.graph_destroy(graph);
    return tl::unexpected((captured ? ended : captured).error());
  }
  cuda::GraphExec exec = nullptr;
  const auto made = do_check(driver.graph_instantiate(&exec, graph, 0), "cuGraphInstantiate");
  (void)driver.graph_destroy(graph);
  TRY(made);

  session_->hold({exec, [device = local_.device](cuda::GraphExec graph) {
                    if (device->use()) (void)device->driver().graph_exec_destroy(graph);
                  }});
  const auto launched = time_launches(exec, call, timeout * times);
  if (launched) session_->hold(nullptr);
  return launched;
}

/// Enqueues all launches without waiting, each with a mark, so that the device has no gap between them. A graph
/// contains many calls: `timeout` is for one launch.
Result<double> NcclCommunicator::time_launches(cuda::GraphExec exec, const Call& call, Milliseconds timeout) {
  const int marks_needed = std::min(graph_launches_, max_between_marks);
  TRY(marks_.reserve(local_.device, static_cast<std::size_t>(marks_needed)));
  TRY(local_.start.record());
  for (int i = 0; i < graph_launches_; ++i) {
    const auto launch = [&] { return local_.device->driver().graph_launch(exec, local_.device->stream()); };
    const auto status = TRY(session_->guard(Clock::now() + timeout, launch));
    TRY(local_.device->driver().check(status, "cuGraphLaunch"));
    if (i + 1 == graph_launches_) break;
    TRY(wait_marks(call, timeout, marks_.size() - 1));
    TRY(marks_.record());
  }
  TRY(local_.end.record());
  TRY(wait_marks(call, timeout, 0));
  TRY(wait_for(local_.end, call, Clock::now() + timeout));
  return TRY(local_.end.microseconds_since(local_.start)) / graph_launches_;
}

Result<std::string> probe_nccl() {
  const GpuSurvey survey = GpuSurvey::of_this_process(true);
  if (survey.devices.empty() || survey.nccl == 0) {
    return fail(Errc::unsupported, concat("nccl cannot run here: ", survey.describe()));
  }
  return survey.describe();
}

Eligibility nccl_eligibility(const Ranks& ranks) {
  const GpuPlan plan = plan_gpus(ranks.surveys, ranks.hosts);
  if (plan.possible() && plan.problem.empty()) return {};
  const bool any = std::any_of(ranks.surveys.begin(), ranks.surveys.end(),
                               [](const GpuSurvey& one) { return !one.devices.empty(); });
  return {false, any ? plan.problem : std::string()};
}

Result<BackendConnection> connect_nccl(const Ranks& ranks, Deadline deadline) {
  const GpuPlan plan = plan_gpus(ranks.surveys, ranks.hosts);
  if (!plan.possible()) return fail(Errc::unsupported, concat("nccl cannot run here: ", plan.problem));
  auto control = TRY(connect_control(ranks, deadline));
  auto made = TRY(NcclCommunicator::connect(ranks.group, ranks.options, plan, control, deadline));
  return BackendConnection{std::move(made), "there is a GPU for each rank", std::move(control)};
}

}  // namespace ddrun::collectives
