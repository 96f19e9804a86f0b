#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "ddrun/collectives/communicator.hpp"
#include "ddrun/collectives/reduction.hpp"
#include "shm/barrier.hpp"
#include "shm/segment.hpp"

namespace ddrun::collectives {

/// The same part of every block of a call, and its layout in a staging area.
struct Part {
  std::size_t begin = 0;   ///< first element within each block
  std::size_t count = 0;   ///< elements
  std::size_t stride = 0;  ///< bytes from one block to the next in the staging area
};

/// Whether other ranks need `rank`'s input.
[[nodiscard]] bool has_input(const Call& call, int rank);
[[nodiscard]] bool has_output(const Call& call, int rank);

/// Copies the part of this rank's input that the others need to `place`; with a block for every rank, each of their
/// blocks.
void pack(const Call& call, int rank, int size, const Part& part, std::byte* place);

/// Makes this rank's output of the packed parts of all ranks in `places` (its own is read from the input). `from` has
/// room for a pointer per rank.
void unpack(const Call& call, int rank, const Part& part, std::span<const std::byte* const> places,
            std::span<const void*> from, Stores stores);

/// Streaming if the results of all ranks together exceed the caches. Reductions in place use normal stores, as their
/// outputs were just read.
[[nodiscard]] Stores stores_of(const Call& call, int size, bool in_place);

/// Collectives on private memory, part by part through the segment.
///
/// Between two barriers each rank packs the next part and unpacks the previous one. For reductions with one result each
/// rank reduces a slice of the previous part and copies all slices of the one before. So there is one barrier per part,
/// and areas being written are never read at the same time.
class Staging {
 public:
  /// All arguments must outlive this object. `segment` is laid out by `layout`.
  Staging(std::byte* segment, const Layout& layout, ShmBarrier& barrier, int rank, int size);

  /// Whether `rank` packs anything in such a call.
  [[nodiscard]] static bool has_input(const Call& call, int rank);

  /// Packs the first part, before the barrier at which the ranks compare their calls.
  void begin(const Call& call);

  /// `begun`: all ranks with input called begin() before the last barrier.
  [[nodiscard]] Result<void> run(const Call& call, bool begun, Deadline deadline);

 private:
  /// Division of a call into `parts` of at most `count` elements of every block.
  struct Cut {
    bool sliced = false;
    std::size_t block = 0;   ///< elements of a block, or of a slice if sliced
    std::size_t count = 0;   ///< elements of a part
    std::size_t stride = 0;  ///< bytes from one block to the next in the staging area
    std::size_t parts = 0;
  };
  [[nodiscard]] Cut cut(const Call& call) const;
  [[nodiscard]] Part part_of(const Cut& cut, std::size_t number) const;
  [[nodiscard]] Part slice_of(const Call& call, const Cut& cut, std::size_t number, int owner) const;

  void pack_part(const Call& call, const Cut& cut, std::size_t number);
  void unpack_part(const Call& call, const Cut& cut, std::size_t number, Stores stores);
  void reduce_slice(const Call& call, const Cut& cut, std::size_t number);
  void unpack_slices(const Call& call, const Cut& cut, std::size_t number, Stores stores);
  [[nodiscard]] std::byte* packed(int rank, unsigned round) const {
    return segment_ + layout_.packed(rank, round & 1U);
  }
  [[nodiscard]] std::byte* reduced(int rank, unsigned round) const {
    return segment_ + layout_.reduced(rank, round & 1U);
  }

  std::byte* segment_;
  const Layout& layout_;
  ShmBarrier& barrier_;
  int rank_;
  int size_;
  /// Number of barriers: data packed in one round is unpacked in the next. The first part of a call is packed in the
  /// round that unpacks the last part of the previous call.
  unsigned round_ = 0;
  std::vector<const void*> from_;
  std::vector<const std::byte*> places_;
};

}  // namespace ddrun::collectives
