#pragma once

#include <memory>
#include <vector>

#include "ddrun/collectives/all_reduce.hpp"
#include "private_memory.hpp"
#include "tcp_links.hpp"

namespace ddrun::collectives {

/// All-reduce over a ring of connections: n - 1 steps in which each rank hands on one n-th of the data and adds
/// what it gets (reduce-scatter), then n - 1 steps in which the finished parts go round (all-gather).
class TcpAllReduce final : public AllReduce {
 public:
  [[nodiscard]] static Result<std::unique_ptr<AllReduce>> connect(const Group& group, std::size_t buffer_count,
                                                                  Deadline deadline);

  [[nodiscard]] std::string_view name() const override { return "tcp"; }
  [[nodiscard]] std::span<float> send_buffer() override { return {buffers_.data(), buffer_count_}; }
  [[nodiscard]] std::span<float> recv_buffer() override { return {buffers_.data() + buffer_count_, buffer_count_}; }
  [[nodiscard]] Result<void> sum(std::span<const float> in, std::span<float> out, Deadline deadline) override;

 private:
  TcpAllReduce(Group group, RingLinks links, std::size_t buffer_count);

  [[nodiscard]] Result<void> run(std::span<const float> in, std::span<float> out, Deadline deadline);
  struct Step;
  [[nodiscard]] Result<void> transfer(Step step, Deadline deadline);
  [[nodiscard]] Result<void> send_some(Step& step, bool& progress);
  [[nodiscard]] Result<void> receive_some(Step& step, bool& progress);
  [[nodiscard]] tl::unexpected<Error> lost(int peer);

  Group group_;
  RingLinks links_;
  std::size_t buffer_count_;
  PrivateMemory buffers_;
  std::vector<float> arrived_;  ///< received, not yet added
  Result<void> state_;          ///< the failure after which nothing works any more
};

}  // namespace ddrun::collectives
