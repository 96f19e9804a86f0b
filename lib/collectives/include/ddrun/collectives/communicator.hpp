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

/// How the data travels.
enum class Backend : unsigned char {
  automatic,  ///< nccl if there is a GPU per rank, else shm if every rank can reach the same shared memory, else tcp
  nccl,       ///< NVIDIA's library, between GPUs
  shm,        ///< memory shared by processes of one machine
  tcp,        ///< connections between the ranks
  gloo,       ///< the Gloo library, as a second opinion
};

/// All of them, in the order of their table (src/back_ends.cpp).
[[nodiscard]] std::span<const Backend> backends();

/// As the option that chooses it: "auto", "nccl", "shm", "tcp", "gloo".
[[nodiscard]] std::string_view name_of(Backend backend);
[[nodiscard]] std::optional<Backend> backend_named(std::string_view name);

/// Whether this build and this machine have what a back end needs, without any peer. What it found, in words, or
/// `unsupported` with what is missing ("this build has no gloo", "no NVIDIA driver: …").
[[nodiscard]] Result<std::string> probe(Backend backend);

/// Whether its buffers are in the memory of GPUs. Of `automatic`: false, though it may choose such a back end.
[[nodiscard]] bool works_on_gpus(Backend backend);

/// Which ranks act together, and their rendezvous.
struct Group {
  int rank = 0;
  int size = 1;
  /// Not owned; must outlive the Communicator. Used on the calling thread only. May be null for a group of one.
  store::TcpClient* store = nullptr;
  /// Key space of this group and attempt in the store, for example "allreduce/0/". Never used twice.
  std::string prefix;
  /// Numeric address of this machine that the other ranks can connect to.
  std::string address = "127.0.0.1";
};

/// One call of a Communicator, as this rank makes it. `in` and `out` have as many blocks of `count` elements as
/// blocks_of() says, aligned for the type, in any memory that the back end can use. They do not overlap, or are in
/// place: of all_gather and gather, `in` is this rank's block of `out`; of reduce_scatter and scatter, `out` is this
/// rank's block of `in`; of the others they are the same memory. What only the root has may be null elsewhere.
struct Call {
  Collective collective = Collective::all_reduce;
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;  ///< used by what reduces()
  std::size_t count = 0;        ///< elements of a block
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  int root = 0;  ///< used by what has_root()
  int to = 0;    ///< of send_recv: which rank gets `in`; this rank itself, as it were from another: nothing but a copy
  int from = 0;  ///< of send_recv: whose `in` comes to `out`

  /// Bytes of a block.
  [[nodiscard]] std::size_t bytes() const { return count * size_of(type); }
};

/// Whether a call's memory is in place; see Call.
[[nodiscard]] bool in_place(const Call& call, int rank, int size);

/// A hook for tests of what checks results: it stands between one rank and its back end and may make mistakes that
/// a back end could make. Called on the calling thread, for each call but barriers.
class FaultInjector {
 public:
  FaultInjector() = default;
  FaultInjector(const FaultInjector&) = delete;
  FaultInjector& operator=(const FaultInjector&) = delete;
  virtual ~FaultInjector() = default;

  /// What this rank contributes: `call.in`, or as many bytes elsewhere that stay valid until result().
  [[nodiscard]] virtual const std::byte* replace_input(const Call& call) { return call.in; }
  /// After the call has succeeded, before the caller sees `call.out`.
  virtual void corrupt_output(const Call& /*call*/) {}
};

/// How shm moves what lies in the callers' own memory.
enum class PrivateCopy : unsigned char {
  automatic,      ///< across where that is allowed and pays, else staged
  staged,         ///< in parts, through memory that the ranks share
  cross_process,  ///< copied by the system from process to process, if it is not small; `unsupported` where it is not
                  ///< allowed
};

struct CommunicatorOptions {
  Backend backend = Backend::automatic;
  /// Bytes of each of the two buffers that the back end provides; equal on all ranks.
  std::size_t buffer_bytes = 0;
  /// What has to be equal on all ranks, one line, as words "name=value". connect() fails with `invalid_argument`
  /// and names both values if it is not.
  std::string must_agree{};
  /// Not owned; must outlive the Communicator. Null: none.
  FaultInjector* fault_injector = nullptr;
  /// tcp: connections from one rank to another, which large messages are spread over, 1 to 64; 0: chosen. Equal on all
  /// ranks.
  int tcp_streams = 0;
  bool nccl_blocking = false;   ///< nccl, of what is timed: wait for each call before the next
  int nccl_graph_launches = 0;  ///< not 0: write the calls down as a CUDA graph and launch it so often
  /// For tests and measurements. Equal on all ranks.
  PrivateCopy private_copy = PrivateCopy::automatic;
};

/// Collective operations of the ranks of a group. One implementation per way of moving data.
///
/// Every rank makes the same calls in the same order with equal counts, types, operations and roots. A call blocks
/// until this rank has its result, the deadline passes (`timeout`), or a peer is known to be gone (`connection_lost`,
/// naming the rank): it never hangs. Ranks that make different calls get `invalid_argument` with both calls in words.
/// After any failure of a call the object only repeats that failure. Not thread-safe. What is reduced is the same, bit
/// for bit, on every rank.
class Communicator {
 public:
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  /// As the option that chooses it: "shm", "tcp".
  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

  /// Two arrays of `buffer_bytes` in the memory this back end works on fastest (for shm: where the peers can reach it,
  /// so that nothing is copied). They live as long as this object, begin at a page, and their content starts undefined.
  [[nodiscard]] virtual std::span<std::byte> send_buffer() = 0;
  [[nodiscard]] virtual std::span<std::byte> recv_buffer() = 0;
  /// What reads and writes those buffers.
  [[nodiscard]] virtual Memory& memory();

  /// What else is worth knowing about how the data travels, in a few words: "4 KiB pages". May be empty.
  [[nodiscard]] virtual std::string details() const { return {}; }

  /// A peer that is known to be gone (`connection_lost`, naming the rank), also between calls. Does not wait.
  [[nodiscard]] virtual std::optional<Error> async_error() { return std::nullopt; }

  /// Empty, or why this back end cannot make such a call ("nccl has no all_to_all in place"). The same on every rank.
  [[nodiscard]] virtual std::string unsupported_reason(Collective collective, DataType type, ReduceOp op,
                                                       bool in_place) const;

  /// out[i] of all_reduce = in[i] of rank 0 op in[i] of rank 1 op …; the others as Collective says. What the operations
  /// mean, and how half and bfloat16 are rounded, see ReduceOp and Kernels.
  [[nodiscard]] Result<void> perform(const Call& call, Deadline deadline);

  /// The same call `times` times, each within `timeout`. Returns what it took in microseconds, as this rank sees it:
  /// from the first one's start to the last one's end, by the clock that suits the memory.
  [[nodiscard]] Result<double> time(const Call& call, int times, Milliseconds timeout);

  /// An all_reduce of whole arrays; `invalid_argument` if they do not fit together.
  [[nodiscard]] Result<void> all_reduce(std::span<const std::byte> in, std::span<std::byte> out, DataType type,
                                        ReduceOp op, Deadline deadline);

  /// The same for arrays of float, which are summed.
  [[nodiscard]] Result<void> sum(std::span<const float> in, std::span<float> out, Deadline deadline) {
    return all_reduce(std::as_bytes(in), std::as_writable_bytes(out), DataType::float32, ReduceOp::sum, deadline);
  }
  [[nodiscard]] Result<void> sum_in_place(std::span<float> data, Deadline deadline) {
    return sum(data, data, deadline);
  }

  /// Returns once every rank has called it.
  [[nodiscard]] Result<void> barrier(Deadline deadline);

  /// The call that was begun last, for people: "all_reduce, 4194304 bytes, iteration 1234". Empty before the first.
  [[nodiscard]] std::string last_call() const;
  /// When it was begun; of many that are timed together, at the latest.
  [[nodiscard]] Deadline begin_time() const { return begin_time_; }

 protected:
  Communicator(int rank, int size) : rank_(rank), size_(size) {}

  /// The call itself, checked as far as one rank can. Not called again after a failure. A barrier has one float in
  /// place, in the host's memory, that may be summed or not.
  [[nodiscard]] virtual Result<void> run(const Call& call, Deadline deadline) = 0;
  /// For time(), without a Tap. Back ends that work while the caller goes on have a clock of their own.
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
  alignas(float) std::array<std::byte, sizeof(float)> barrier_scratch_{};  ///< what barriers sum
  FaultInjector* fault_injector_ = nullptr;
  Result<void> state_;  ///< the failure after which nothing works any more
};

/// One rank as the others see it.
struct Member {
  std::string host;  ///< the machine's host name; two machines may share one
  int pid = 0;
  std::string processors{};  ///< those it may run on: "0-3,8"
};

struct Connected {
  /// For the test's own words: small calls in the memory of the host, which are right even where `communicator` is not,
  /// and know soon when a peer is gone. The same object where that is shm or tcp.
  std::shared_ptr<Communicator> control;
  std::shared_ptr<Communicator> communicator;
  std::vector<Member> members;  ///< by rank
  /// Why it is this back end, in words: "all 4 ranks are on one machine".
  std::string why;
};

/// Chooses a back end (the same on every rank) and connects the group; blocks until all ranks are there. `timeout`
/// names those that are not. The buffers are reserved at once, so that too little memory is an error (`unavailable`)
/// here and no crash later.
[[nodiscard]] Result<Connected> connect(const Group& group, const CommunicatorOptions& options, Deadline deadline);

}  // namespace ddrun::collectives
