#pragma once

#include <memory>
#include <optional>
#include <string>

#include "back_ends.hpp"
#include "ddrun/collectives/communicator.hpp"
#include "ddrun/collectives/memory.hpp"
#include "tcp/algorithms.hpp"
#include "tcp/transfer.hpp"

namespace ddrun::collectives {

struct TcpOptions {
  std::size_t buffer_bytes = 0;
  /// Connections per link, 1 to TcpLinks::max_streams; 0: chosen. Equal on all ranks.
  int streams = 0;
  /// Whether this machine has more ranks than processors, so that none should spin.
  bool oversubscribed = true;
  /// For tests: algorithm limits; equal on all ranks. Default: plan_for().
  std::optional<Plan> plan{};
};

/// Collectives over TCP connections; see TcpLinks, TcpTransfer and the algorithms.
class TcpCommunicator final : public Communicator {
 public:
  [[nodiscard]] static Result<std::unique_ptr<TcpCommunicator>> connect(const Group& group, const TcpOptions& options,
                                                                        Deadline deadline);
  /// Sends leave notices to the peers, unless a call has failed.
  ~TcpCommunicator() override;

  [[nodiscard]] std::string_view name() const override { return "tcp"; }
  /// "4 streams"
  [[nodiscard]] std::string details() const override;
  /// Checks the next rank of the ring only; a lost rank's predecessor exits in turn, so all ranks notice.
  [[nodiscard]] std::optional<Error> async_error() override;
  [[nodiscard]] std::span<std::byte> send_buffer() override { return {buffers_.data(), buffer_bytes_}; }
  [[nodiscard]] std::span<std::byte> recv_buffer() override { return {buffers_.data() + distance_, buffer_bytes_}; }

 private:
  TcpCommunicator(Group group, TcpLinks links, const TcpOptions& options, const TransferOptions& transfer);

  [[nodiscard]] Result<void> run(const Call& call, Deadline deadline) override;
  [[nodiscard]] Error first_failure(Error mine);

  Group group_;
  int streams_;
  TcpTransfer transfer_;
  Workspace workspace_;
  Plan plan_;
  std::size_t buffer_bytes_;
  std::size_t distance_;  ///< from the send to the receive buffer: whole pages
  PrivateMemory buffers_;
  bool failed_ = false;
};

}  // namespace ddrun::collectives
