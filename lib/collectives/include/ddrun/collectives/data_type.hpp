#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace ddrun::collectives {

/// What an element is. Numbers and order are those of ncclDataType_t.
enum class DataType : unsigned char { int8, uint8, int32, uint32, int64, uint64, float16, float32, float64, bfloat16 };

inline constexpr std::array kDataTypes{DataType::int8,    DataType::uint8,   DataType::int32,   DataType::uint32,
                                       DataType::int64,   DataType::uint64,  DataType::float16, DataType::float32,
                                       DataType::float64, DataType::bfloat16};

/// Bytes of an element of each.
inline constexpr std::array<std::size_t, kDataTypes.size()> kDataTypeSizes{1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
[[nodiscard]] constexpr std::size_t size_of(DataType type) { return kDataTypeSizes[static_cast<std::size_t>(type)]; }

/// As nccl-tests calls it: "int8", "half", "float", "double", "bfloat16", …
[[nodiscard]] std::string_view name_of(DataType type);
[[nodiscard]] std::optional<DataType> data_type_named(std::string_view name);

/// How the bytes of an element are to be understood.
enum class NumberKind { signed_integer, unsigned_integer, floating };
[[nodiscard]] NumberKind kind_of(DataType type);

}  // namespace ddrun::collectives
