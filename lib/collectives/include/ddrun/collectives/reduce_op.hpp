#pragma once

#include <array>
#include <optional>
#include <string_view>

namespace ddrun::collectives {

/// How the elements of all ranks become one. Numbers and order are those of ncclRedOp_t.
///
/// Integers wrap around. avg is the sum divided by the number of ranks; for integers what wrapping has left of the
/// sum is divided and the quotient cut towards zero. A NaN in any input makes the result NaN, of min and max too.
enum class ReduceOp : unsigned char { sum, prod, max, min, avg };

inline constexpr std::array kReduceOps{ReduceOp::sum, ReduceOp::prod, ReduceOp::max, ReduceOp::min, ReduceOp::avg};

/// As nccl-tests calls it: "sum", "prod", "max", "min", "avg".
[[nodiscard]] std::string_view name_of(ReduceOp op);
[[nodiscard]] std::optional<ReduceOp> reduce_op_named(std::string_view name);

}  // namespace ddrun::collectives
