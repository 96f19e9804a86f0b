#pragma once

#include <memory>
#include <vector>

#include "ddrun/collectives/communicator.hpp"
#include "ddrun/collectives/private_memory.hpp"
#include "tcp_links.hpp"

namespace ddrun::collectives {

/// All-reduce over a ring of connections: n - 1 steps in which each rank hands on one n-th of the data and reduces
/// what it gets with its own (reduce-scatter), then n - 1 steps in which the finished parts go round (all-gather).
/// What is not finished travels in the accumulator's type, so half and bfloat16 are rounded once here, too.
/// In front of its first data each rank says which call this is.
class TcpCommunicator final : public Communicator {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Communicator>> connect(const Group& group, std::size_t buffer_bytes,
                                                                     Deadline deadline);

  [[nodiscard]] std::string_view name() const override { return "tcp"; }
  [[nodiscard]] std::string lacks(Collective collective, DataType type, ReduceOp op, bool in_place) const override;
  [[nodiscard]] std::span<std::byte> send_buffer() override { return {buffers_.data(), buffer_bytes_}; }
  [[nodiscard]] std::span<std::byte> recv_buffer() override { return {buffers_.data() + distance_, buffer_bytes_}; }

 private:
  TcpCommunicator(Group group, RingLinks links, std::size_t buffer_bytes);

  [[nodiscard]] Result<void> run(const Call& call, Deadline deadline) override;
  struct Step;
  [[nodiscard]] Result<void> reduce_scatter(const Call& call, Deadline deadline);
  [[nodiscard]] Result<void> all_gather(const Call& call, Deadline deadline);
  [[nodiscard]] Result<void> transfer(Step step, Deadline deadline);
  [[nodiscard]] Result<void> send_some(Step& step, bool& progress);
  [[nodiscard]] Result<void> receive_some(Step& step, bool& progress);
  [[nodiscard]] Result<void> check_header(const Call& call);
  void take(Step& step, std::size_t count);
  [[nodiscard]] Error first_failure(Error mine);
  [[nodiscard]] tl::unexpected<Error> lost(int peer);
  [[nodiscard]] int next() const { return (group_.rank + 1) % group_.size; }
  [[nodiscard]] int previous() const { return (group_.rank + group_.size - 1) % group_.size; }

  /// In front of a call's data, in the byte order of the machine: all ranks have the same program.
  struct Header {
    std::uint64_t kind = 0;
    std::uint64_t count = 0;
  };

  Group group_;
  RingLinks links_;
  std::size_t buffer_bytes_;
  std::size_t distance_;  ///< from the send buffer to the receive buffer: whole pages
  PrivateMemory buffers_;
  std::vector<std::byte> arrived_;     ///< received, not yet reduced
  std::vector<std::byte> numbers_;     ///< a piece in the accumulator's type
  std::vector<std::byte> partial_[2];  ///< parts on their way round, where they do not fit into the output
  Header sent_;
  Header received_;
};

}  // namespace ddrun::collectives
