#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ddrun::collectives {

/// Whether large messages are sent from where they lie, without being copied into the system's memory (Linux:
/// Documentation/networking/msg_zerocopy.rst).
enum class ZeroCopy : unsigned char {
  never,
  where_it_works,  ///< given up for a link as soon as the system says that it has copied after all, as for all
                   ///< connections inside a machine
  always,          ///< for tests
};

/// What is still being sent over one connection from the program's own memory.
class ZeroCopySends {
 public:
  explicit ZeroCopySends(ZeroCopy wish) : wish_(wish) {}

  /// Of `bytes` that are left of a message: how many to send next without copying; 0: copy. The last ones are copied,
  /// so that the peer has something to acknowledge after those before: else it might wait to.
  [[nodiscard]] std::size_t share(int fd, std::size_t bytes);
  /// After a send that did not copy.
  void sent() { ++begun_; }
  /// After one that the system had no room to keep in mind: a while without.
  void refused() { wish_ = ZeroCopy::never; }

  /// Whether the system still reads from the program's memory.
  [[nodiscard]] bool pending() const { return done_ != begun_; }
  /// Takes what the system says of those; does not block. Ready as POLLERR.
  void collect(int fd);

 private:
  ZeroCopy wish_;
  bool asked_ = false;
  std::uint32_t begun_ = 0;
  std::uint32_t done_ = 0;
};

}  // namespace ddrun::collectives
