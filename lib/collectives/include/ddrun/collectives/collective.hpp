#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

namespace ddrun::collectives {

/// Type of an element. Values and order are those of ncclDataType_t.
enum class DataType : unsigned char { int8, uint8, int32, uint32, int64, uint64, float16, float32, float64, bfloat16 };

inline constexpr std::array all_types{DataType::int8,    DataType::uint8,   DataType::int32,   DataType::uint32,
                                      DataType::int64,   DataType::uint64,  DataType::float16, DataType::float32,
                                      DataType::float64, DataType::bfloat16};

inline constexpr std::array<std::size_t, all_types.size()> type_sizes{1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
[[nodiscard]] constexpr std::size_t size_of(DataType type) { return type_sizes[static_cast<std::size_t>(type)]; }

/// The names of nccl-tests: "int8", "half", "float", "double", "bfloat16", …
[[nodiscard]] std::string_view name_of(DataType type);
[[nodiscard]] std::optional<DataType> data_type_named(std::string_view name);

/// Interpretation of an element's bytes.
enum class NumberKind { signed_integer, unsigned_integer, floating };
[[nodiscard]] NumberKind kind_of(DataType type);

/// Reduction operation. Values and order are those of ncclRedOp_t.
///
/// Integers wrap around. avg is the sum divided by the number of ranks; for integers the wrapped sum is divided and the
/// quotient truncated towards zero. A NaN in any input makes the result NaN, also for min and max.
enum class ReduceOp : unsigned char { sum, prod, max, min, avg };

inline constexpr std::array all_ops{ReduceOp::sum, ReduceOp::prod, ReduceOp::max, ReduceOp::min, ReduceOp::avg};

/// The names of nccl-tests: "sum", "prod", "max", "min", "avg".
[[nodiscard]] std::string_view name_of(ReduceOp op);
[[nodiscard]] std::optional<ReduceOp> reduce_op_named(std::string_view name);

/// A collective operation. `count` is that of a Call, n the number of ranks; a block has `count` elements.
enum class Collective : unsigned char {
  barrier,         ///< no rank returns before all have called
  all_reduce,      ///< all get the reduction of all inputs
  broadcast,       ///< all get the root's input
  reduce,          ///< the root gets the reduction of all inputs
  all_gather,      ///< all get the inputs of all ranks, n blocks by rank
  reduce_scatter,  ///< rank r gets block r of the reduction of all inputs, which have n blocks
  gather,          ///< the root gets the inputs of all ranks, n blocks by rank
  scatter,         ///< rank r gets block r of the root's input
  all_to_all,      ///< rank r gets block r of each input, n blocks by rank
  send_recv,       ///< each rank sends its input to one rank and gets the input of one rank
};

inline constexpr std::array all_collectives{Collective::barrier,  Collective::all_reduce, Collective::broadcast,
                                            Collective::reduce,   Collective::all_gather, Collective::reduce_scatter,
                                            Collective::gather,   Collective::scatter,    Collective::all_to_all,
                                            Collective::send_recv};

[[nodiscard]] std::string_view name_of(Collective collective);
/// The inverse; '-' and '_' are equal and may be omitted ("allreduce", "all-to-all").
[[nodiscard]] std::optional<Collective> collective_named(std::string_view name);

[[nodiscard]] bool reduces(Collective collective);
[[nodiscard]] bool has_root(Collective collective);

/// Number of blocks of a rank's input and output. gather and reduce use only the root's output, scatter only the root's
/// input.
struct Blocks {
  std::size_t in = 1;
  std::size_t out = 1;
};
[[nodiscard]] Blocks blocks_of(Collective collective, int ranks);

}  // namespace ddrun::collectives
