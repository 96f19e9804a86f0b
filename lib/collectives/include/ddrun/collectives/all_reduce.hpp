#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"

namespace ddrun::store {
class Store;
}

namespace ddrun::collectives {

/// Which ranks act together, and where they meet.
struct Group {
  int rank = 0;
  int size = 1;
  /// Not owned; must outlive the AllReduce. Used on the calling thread only. May be null for a group of one.
  store::Store* store = nullptr;
  /// Key space of this group and attempt in the store, for example "allreduce/0/". Never used twice.
  std::string prefix;
  /// Numeric address of this machine that the other ranks can connect to.
  std::string address = "127.0.0.1";
};

/// How the data travels. A GPU library is a further value here and a further implementation of AllReduce.
enum class Backend {
  automatic,  ///< shm if every rank can reach the same shared memory, else tcp
  shm,        ///< memory shared by processes of one machine
  tcp,        ///< a ring of connections
};

struct AllReduceOptions {
  Backend backend = Backend::automatic;
  /// Elements in each of the two buffers that the back end provides; equal on all ranks.
  std::size_t buffer_count = 0;
};

/// Sums arrays of float over all ranks of a group. One implementation per way of moving data.
///
/// Every rank makes the same calls in the same order with equal counts. A call blocks until this rank has its
/// result, the deadline passes (`timeout`), or a peer is known to be gone (`connection_lost`, naming the rank):
/// it never hangs. Unequal counts that are noticed are `invalid_argument`. After any failure the object only
/// repeats that failure. Not thread-safe. Results are the same, bit for bit, on every rank.
class AllReduce {
 public:
  AllReduce() = default;
  AllReduce(const AllReduce&) = delete;
  AllReduce& operator=(const AllReduce&) = delete;
  virtual ~AllReduce() = default;

  /// "shm" or "tcp".
  [[nodiscard]] virtual std::string_view name() const = 0;

  /// Two arrays of `buffer_count` elements in the memory this back end works on fastest (for shm: where the
  /// peers can reach it, so that nothing is copied). They live as long as this object; content starts undefined.
  [[nodiscard]] virtual std::span<float> send_buffer() = 0;
  [[nodiscard]] virtual std::span<float> recv_buffer() = 0;

  /// out[i] = sum over all ranks of in[i]. `in` and `out` have equal sizes and are either the same memory or do
  /// not overlap; any memory will do.
  [[nodiscard]] virtual Result<void> sum(std::span<const float> in, std::span<float> out, Deadline deadline) = 0;

  [[nodiscard]] Result<void> sum_in_place(std::span<float> data, Deadline deadline) {
    return sum(data, data, deadline);
  }

  /// Returns once every rank has called it.
  [[nodiscard]] Result<void> barrier(Deadline deadline);
};

/// One rank as the others see it.
struct Member {
  std::string host;  ///< the machine's host name; two machines may share one
  int pid = 0;
};

struct Connected {
  std::unique_ptr<AllReduce> all_reduce;
  std::vector<Member> members;  ///< by rank
  /// Why Backend::automatic did not take shared memory; empty otherwise.
  std::string why_not_shm;
};

/// Chooses a back end (the same on every rank) and connects the group; blocks until all ranks are there. `timeout`
/// names those that are not. `buffer_count` elements are reserved at once, so that too little memory is an error
/// (`unavailable`) here and no crash later.
[[nodiscard]] Result<Connected> connect(const Group& group, const AllReduceOptions& options, Deadline deadline);

}  // namespace ddrun::collectives
