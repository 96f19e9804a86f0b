#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "ddrun/collectives/communicator.hpp"
#include "ddrun/collectives/reduction.hpp"
#include "shm/barrier.hpp"
#include "shm/segment.hpp"

namespace ddrun::collectives {

/// The same part of every block of a call, and how it lies where a rank gives it to the others.
struct Part {
  std::size_t begin = 0;   ///< element of each block
  std::size_t count = 0;   ///< elements
  std::size_t stride = 0;  ///< bytes from one block to the next in such a place
};

/// Whether other ranks need `rank`'s input.
[[nodiscard]] bool has_input(const Call& call, int rank);
/// Whether `rank` has an output.
[[nodiscard]] bool has_output(const Call& call, int rank);

/// Copies what the others need of this rank's input to `place`: of calls with a block for every rank, each of theirs.
void pack(const Call& call, int rank, int size, const Part& part, std::byte* place);

/// Makes this rank's output of what the others have given; `places` are all ranks', of which its own is not read.
/// `from` is room for a pointer per rank.
void unpack(const Call& call, int rank, const Part& part, std::span<const std::byte* const> places,
            std::span<const void*> from, Stores stores);

/// Whether the results of a call, all ranks' together, stay in no cache and so need not be read into one. Results of
/// reductions in place lie where inputs were just read.
[[nodiscard]] Stores stores_of(const Call& call, int size, bool in_place);

/// Collectives on memory that not every rank reaches, part by part through places in the segment that every rank does.
///
/// Between two gates each rank gives the next part, and takes the one that was given before. Of reductions with one
/// result, each rank reduces a slice of the part given before, and takes all slices of the one before that. So there is
/// one gate per part, and what is given and taken at the same time lies in different places.
class Staging {
 public:
  /// All of it outlives this object. `segment` is laid out as `layout` says.
  Staging(std::byte* segment, const Layout& layout, ShmBarrier& barrier, int rank, int size);

  /// Whether `rank` has anything to give in such a call.
  [[nodiscard]] static bool has_input(const Call& call, int rank);

  /// May come before the gate at which the ranks compare their calls: gives the first part.
  void begin(const Call& call);

  /// `begun`: all ranks that give something have begun before the last gate.
  [[nodiscard]] Result<void> run(const Call& call, bool begun, Deadline deadline);

 private:
  /// How a call is cut: `parts` of `count` elements each, or less at the end, of every block.
  struct Cut {
    bool sliced = false;
    std::size_t block = 0;   ///< elements of a block, which is a slice where these are cut
    std::size_t count = 0;   ///< elements of a part
    std::size_t stride = 0;  ///< bytes from one block to the next in a place
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
  /// Gates that were passed here: what is given in one turn is taken in the next. The first part of a call is given
  /// in the turn in which the last of the call before is taken.
  unsigned round_ = 0;
  std::vector<const void*> from_;
  std::vector<const std::byte*> places_;
};

}  // namespace ddrun::collectives
