#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/collectives/collective.hpp"
#include "ddrun/collectives/memory.hpp"

namespace ddrun::store {
class TcpClient;
}

namespace ddrun::collectives {

/// Transport of the data.
enum class Backend : unsigned char {
  automatic,  ///< nccl if there is a GPU per rank, else shm if every rank can reach the same shared memory, else tcp
  nccl,       ///< NVIDIA's library, between GPUs
  shm,        ///< memory shared by the processes of one machine
  tcp,        ///< TCP connections between the ranks
  gloo,       ///< the Gloo library, for comparison
};

/// All back ends, in the order of the table in src/back_ends.cpp.
[[nodiscard]] std::span<const Backend> backends();

/// The value of --backend: "auto", "nccl", "shm", "tcp", "gloo".
[[nodiscard]] std::string_view name_of(Backend backend);
[[nodiscard]] std::optional<Backend> backend_named(std::string_view name);

/// Checks without any peer whether this build and this machine have what the back end needs. Returns a description of
/// what was found, or `unsupported` with what is missing ("this build has no gloo", "no NVIDIA driver: …").
[[nodiscard]] Result<std::string> probe(Backend backend);

/// Whether work on a GPU was left behind because it could not be stopped. The driver's exit handlers may wait for it
/// without end: call _exit() then.
[[nodiscard]] bool has_stuck_gpu();

/// Whether the back end's buffers are in GPU memory. False for `automatic`, although it may choose such a back end.
[[nodiscard]] bool works_on_gpus(Backend backend);

/// The ranks of a communicator, and the store through which they connect.
struct Group {
  int rank = 0;
  int size = 1;
  /// Not owned; must outlive the Communicator. Used on the calling thread only. May be null for a group of one.
  store::TcpClient* store = nullptr;
  /// Key prefix of this group and attempt in the store, for example "allreduce/0/". Must not be reused.
  std::string prefix;
  /// Numeric address of this machine that the other ranks can connect to.
  std::string address = "127.0.0.1";
};

/// Arguments of one collective call on this rank. `in` and `out` have the number of blocks of `count` elements that
/// blocks_of() returns, are aligned for the type, and may be any memory that the back end can access. They either do
/// not overlap or are in place: for all_gather and gather, `in` is this rank's block of `out`; for reduce_scatter and
/// scatter, `out` is this rank's block of `in`; for the others they are equal. A buffer that only the root uses may be
/// null elsewhere.
struct Call {
  Collective collective = Collective::all_reduce;
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;  ///< used if reduces(collective)
  std::size_t count = 0;        ///< elements of a block
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  int root = 0;  ///< used if has_root(collective)
  int to = 0;    ///< send_recv: the rank that receives `in`; this rank itself: a local copy
  int from = 0;  ///< send_recv: the rank whose `in` is received into `out`

  [[nodiscard]] std::size_t bytes() const { return count * size_of(type); }
};

/// Whether input and output are in place; see Call.
[[nodiscard]] bool in_place(const Call& call, int rank, int size);

/// Test hook that corrupts one rank's calls, to test the checking of results. Runs on the calling thread for each call
/// except barriers.
class FaultInjector {
 public:
  FaultInjector() = default;
  FaultInjector(const FaultInjector&) = delete;
  FaultInjector& operator=(const FaultInjector&) = delete;
  virtual ~FaultInjector() = default;

  /// Called before a call. Returns `call.in` or a buffer of the same size that stays valid until corrupt_output().
  [[nodiscard]] virtual const std::byte* replace_input(const Call& call) { return call.in; }
  /// Called after a successful call, before the caller sees `call.out`.
  virtual void corrupt_output(const Call& /*call*/) {}
};

/// How shm transfers data in the callers' private memory.
enum class PrivateCopy : unsigned char {
  automatic,      ///< cross_process where permitted and faster, else staged
  staged,         ///< copied in parts through the shared segment
  cross_process,  ///< copied by the kernel (process_vm_readv), except small data; `unsupported` if denied
};

struct CommunicatorOptions {
  Backend backend = Backend::automatic;
  /// Bytes of each of the back end's two buffers. Equal on all ranks.
  std::size_t buffer_bytes = 0;
  /// Options that must be equal on all ranks, one line of "name=value" fields. On a difference connect() fails with
  /// `invalid_argument` and names both values.
  std::string must_agree{};
  /// Not owned; must outlive the Communicator. Null: none.
  FaultInjector* fault_injector = nullptr;
  /// tcp: connections per pair of ranks for large messages, 1 to 64; 0: chosen. Equal on all ranks.
  int tcp_streams = 0;
  bool nccl_blocking = false;   ///< nccl, timed calls: wait for each call before the next
  int nccl_graph_launches = 0;  ///< nccl: > 0: capture the calls as a CUDA graph and launch it this many times
  /// For tests and measurements. Equal on all ranks.
  PrivateCopy private_copy = PrivateCopy::automatic;
};

/// Collective operations of a group of ranks; one implementation per back end.
///
/// Every rank must make the same calls in the same order with equal counts, types, operations and roots. A call blocks
/// until this rank has its result, the deadline passes (`timeout`) or a peer has exited (`connection_lost`, naming the
/// rank); it never hangs. Ranks that make different calls get `invalid_argument` with both calls described. After a
/// failed call every further call returns the same error. Not thread-safe. Reduced results are bitwise equal on all
/// ranks.
class Communicator {
 public:
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  /// The value of --backend: "shm", "tcp".
  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

  /// Two arrays of `buffer_bytes` in the memory that this back end transfers fastest (shm: the segment, so that peers
  /// access it without a copy). Page-aligned, initially undefined, owned by the communicator.
  [[nodiscard]] virtual std::span<std::byte> send_buffer() = 0;
  [[nodiscard]] virtual std::span<std::byte> recv_buffer() = 0;
  /// Access to the content of those buffers.
  [[nodiscard]] virtual Memory& memory();

  /// Further details of the transport for the report, such as "4 KiB pages". May be empty.
  [[nodiscard]] virtual std::string details() const { return {}; }

  /// An exited peer (`connection_lost`, naming the rank), also detected between calls. Does not block.
  [[nodiscard]] virtual std::optional<Error> async_error() { return std::nullopt; }

  /// Empty, or why this back end cannot make such a call ("nccl has no all_to_all in place"). Equal on all ranks.
  [[nodiscard]] virtual std::string unsupported_reason(Collective collective, DataType type, ReduceOp op,
                                                       bool in_place) const;

  /// Makes the call. all_reduce: out[i] = in[i] of rank 0 op in[i] of rank 1 op …; for the others see Collective.
  /// ReduceOp and Kernels define the operations and the rounding of half and bfloat16.
  [[nodiscard]] Result<void> perform(const Call& call, Deadline deadline);

  /// Makes the same call `times` times, each within `timeout`. Returns this rank's time in microseconds from the start
  /// of the first to the end of the last call; GPU back ends measure it on the device.
  [[nodiscard]] Result<double> time(const Call& call, int times, Milliseconds timeout);

  /// An all_reduce of whole arrays; `invalid_argument` if their sizes do not match.
  [[nodiscard]] Result<void> all_reduce(std::span<const std::byte> in, std::span<std::byte> out, DataType type,
                                        ReduceOp op, Deadline deadline);

  /// The sum of arrays of float.
  [[nodiscard]] Result<void> sum(std::span<const float> in, std::span<float> out, Deadline deadline) {
    return all_reduce(std::as_bytes(in), std::as_writable_bytes(out), DataType::float32, ReduceOp::sum, deadline);
  }

  /// Returns once every rank has called it.
  [[nodiscard]] Result<void> barrier(Deadline deadline);

  /// The last call begun, for messages: "all_reduce, 4194304 bytes, iteration 1234". Empty before the first.
  [[nodiscard]] std::string last_call() const;
  /// When that call began; within time(), the latest clock reading.
  [[nodiscard]] Deadline begin_time() const { return begin_time_; }

 protected:
  Communicator(int rank, int size) : rank_(rank), size_(size) {}

  /// Makes the call. `call` has been validated as far as one rank can; not invoked after a failure. A barrier is passed
  /// as one float in place in host memory, which the back end may reduce.
  [[nodiscard]] virtual Result<void> run(const Call& call, Deadline deadline) = 0;
  /// For time(), without a FaultInjector. Back ends that work asynchronously override it with device timing.
  [[nodiscard]] virtual Result<double> run_timed(const Call& call, int times, Milliseconds timeout);

 private:
  friend Result<struct Connected> connect(const Group& group, const CommunicatorOptions& options, Deadline deadline);
  [[nodiscard]] Result<void> check(const Call& call) const;
  [[nodiscard]] Call barrier_call();

  int rank_;
  int size_;
  std::uint64_t calls_ = 0;
  Call last_;
  Deadline begin_time_;
  alignas(float) std::array<std::byte, sizeof(float)> barrier_scratch_{};  ///< operand of barriers
  FaultInjector* fault_injector_ = nullptr;
  Result<void> state_;  ///< the first failure, returned by all later calls
};

/// A rank as its peers see it.
struct Member {
  std::string host;  ///< host name of the machine; not necessarily unique
  int pid = 0;
  std::string processors{};  ///< the processors it may run on: "0-3,8"
};

struct Connected {
  /// For the program's own small messages: works in host memory, is correct even where `communicator` is not, and
  /// detects exited peers quickly. The same object if that is shm or tcp.
  std::shared_ptr<Communicator> control;
  std::shared_ptr<Communicator> communicator;
  std::vector<Member> members;  ///< by rank
  /// Why this back end was chosen: "all ranks are on one machine".
  std::string why;
};

/// Chooses a back end, the same on every rank, and connects the group. Blocks until all ranks have connected; `timeout`
/// names the missing ranks. Reserves the buffers at once, so that too little memory is an error (`unavailable`) here
/// and not a crash later.
[[nodiscard]] Result<Connected> connect(const Group& group, const CommunicatorOptions& options, Deadline deadline);

}  // namespace ddrun::collectives
