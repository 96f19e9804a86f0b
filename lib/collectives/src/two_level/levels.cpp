#include "two_level/levels.hpp"

#include "ddrun/collectives/reduction.hpp"
#include "rank_words.hpp"

namespace ddrun::collectives {

Result<void> Levels::across(const Call& between, Deadline deadline) const {
  auto done = column->perform(between, deadline);
  if (!done) return tl::unexpected(with_ranks(done.error(), column_ranks));
  return done;
}

std::optional<Error> Levels::trouble() const {
  if (auto known = team->trouble()) return known;
  if (column) {
    if (auto lost = column->trouble()) return with_ranks(std::move(*lost), column_ranks);
  }
  return flat ? flat->trouble() : std::nullopt;
}

DataType travelling_type(const Call& call) {
  return reduces(call.collective) ? accumulator_type(call.type) : call.type;
}

ReduceOp travelling_op(const Call& call) { return call.op == ReduceOp::avg ? ReduceOp::sum : call.op; }

}  // namespace ddrun::collectives
