#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ddrun::rendezvous {

/// What nodes tell about the failure of a worker in STOPPED, gathered while a round is being stopped. The node where a
/// worker ended badly first is the cause. Where that one's workers only complain of others, and another node has a
/// worker that failed of its own accord, both are told. JSON as in PROTOCOL.md, section 3; what is none is passed on
/// unread.
class CauseDetails {
 public:
  void clear() { *this = {}; }
  /// Of the node where the cause is.
  void of_cause(std::string json) { of_cause_ = std::move(json); }
  /// Of another one: the earliest that has evidence of its own is kept.
  void of_another(const std::string& host, std::int32_t node_rank, const std::string& json);
  /// For VERDICT.
  [[nodiscard]] std::string text() const;

 private:
  std::string of_cause_;
  std::string of_another_;
  std::int64_t time_us_ = 0;  ///< of `of_another_`, by its node's clock
};

}  // namespace ddrun::rendezvous
