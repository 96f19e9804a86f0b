#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "ddrun/collectives/communicator.hpp"
#include "tcp/links.hpp"

namespace ddrun::collectives {

/// Who is gone and who makes another call, seen at the end of links where no data comes: a link's receiver sends
/// nothing but notices. Each rank watches the next one in the ring, whatever it is waiting for, and leaves when that is
/// lost, so that all learn of it one after the other.
class TcpWatch {
 public:
  TcpWatch(int rank, int size);

  /// The call that this rank is making now, the `number`-th.
  void begin(const Call& call, std::uint64_t number);

  /// Whether there is a link to `peer` to listen on, and nothing final was heard from there.
  [[nodiscard]] bool can_hear(const TcpLinks& links, int peer) const;
  /// Takes the notices from `peer`, if there are any; does not block. `connection_lost` if it is gone without a word,
  /// `invalid_argument` if it makes another call.
  [[nodiscard]] Result<void> hear(const TcpLinks& links, int peer);
  /// Whether `peer` has left, as it should or not: it will never send anything again.
  [[nodiscard]] bool has_left(int peer) const { return left_[static_cast<std::size_t>(peer)] != 0; }

  /// Tells the rank before which call this is; for who has waited long. Once per call.
  void tell_call(const TcpLinks& links);
  /// Tells everybody who has a link to this rank that it leaves as it should.
  static void tell_leaving(const TcpLinks& links, int size);

  [[nodiscard]] int next() const { return (rank_ + 1) % size_; }

 private:
  /// In the byte order of the machine: all ranks have the same program.
  struct Notice {
    std::uint64_t call = 0;  ///< number of the call that it waits in, or kLeaving
    std::uint64_t kind = 0;
    std::uint64_t count = 0;
  };
  static constexpr std::uint64_t kLeaving = ~std::uint64_t{0};
  struct Half {
    std::array<std::byte, sizeof(Notice)> bytes;
    std::size_t have = 0;
  };

  [[nodiscard]] Result<void> compare() const;
  static void tell(int fd, const Notice& notice);

  int rank_;
  int size_;
  Call call_;
  std::uint64_t number_ = 0;
  bool told_ = false;
  std::vector<Half> halves_;         ///< by rank: a notice that is not whole yet
  std::vector<unsigned char> left_;  ///< by rank
  Notice next_says_;                 ///< the last one of the next rank
};

}  // namespace ddrun::collectives
