#pragma once

#include "two_level/work.hpp"

namespace ddrun::collectives {

/// send_recv: what comes from a rank of the same host is read from its memory, the rest goes over TCP between the two
/// ranks, while others of the host do the same. Every rank takes part in the meetings of its host, whoever its partners
/// are, and sends and receives in one step, so that no order of partners can block.
class MessageWork final : public LevelWork {
 public:
  using LevelWork::LevelWork;

  /// Whether partners of this host do not mean each other: then run() has failed and said so.
  [[nodiscard]] bool partners_differ() const { return partners_differ_; }

 private:
  [[nodiscard]] bool reads(const Call& /*call*/, int /*rank*/) const override { return true; }
  [[nodiscard]] bool writes(const Call& /*call*/, int /*rank*/) const override { return false; }
  [[nodiscard]] bool moves_at_once(const Call& /*call*/) const override { return true; }
  [[nodiscard]] std::size_t most(const Call& call) const override;
  [[nodiscard]] Result<void> work(const Call& call, const Piece& piece, Deadline deadline) override;
  [[nodiscard]] Result<void> compare_partners() const;
  [[nodiscard]] bool is_here(int rank) const { return levels_.hosts.host_of(rank) == levels_.host; }

  bool partners_differ_ = false;
};

}  // namespace ddrun::collectives
