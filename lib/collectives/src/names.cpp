#include <algorithm>

#include "ddrun/collectives/collective.hpp"
#include "ddrun/collectives/data_type.hpp"
#include "ddrun/collectives/reduce_op.hpp"

namespace ddrun::collectives {

namespace {

struct TypeFacts {
  std::string_view name;
  std::size_t size;
  NumberKind kind;
};

constexpr std::array<TypeFacts, kDataTypes.size()> kTypeFacts{{{"int8", 1, NumberKind::signed_integer},
                                                               {"uint8", 1, NumberKind::unsigned_integer},
                                                               {"int32", 4, NumberKind::signed_integer},
                                                               {"uint32", 4, NumberKind::unsigned_integer},
                                                               {"int64", 8, NumberKind::signed_integer},
                                                               {"uint64", 8, NumberKind::unsigned_integer},
                                                               {"half", 2, NumberKind::floating},
                                                               {"float", 4, NumberKind::floating},
                                                               {"double", 8, NumberKind::floating},
                                                               {"bfloat16", 2, NumberKind::floating}}};

constexpr std::array<std::string_view, kReduceOps.size()> kOpNames{"sum", "prod", "max", "min", "avg"};

const TypeFacts& facts(DataType type) { return kTypeFacts[static_cast<std::size_t>(type)]; }

template <class Value, std::size_t Count>
std::optional<Value> named(const std::array<Value, Count>& all, std::string_view name) {
  const auto found = std::find_if(all.begin(), all.end(), [&](Value value) { return name_of(value) == name; });
  return found == all.end() ? std::nullopt : std::optional(*found);
}

}  // namespace

std::size_t size_of(DataType type) { return facts(type).size; }
std::string_view name_of(DataType type) { return facts(type).name; }
NumberKind kind_of(DataType type) { return facts(type).kind; }
std::optional<DataType> data_type_named(std::string_view name) { return named(kDataTypes, name); }

std::string_view name_of(ReduceOp op) { return kOpNames[static_cast<std::size_t>(op)]; }
std::optional<ReduceOp> reduce_op_named(std::string_view name) { return named(kReduceOps, name); }

std::string_view name_of(Collective collective) { return collective == Collective::barrier ? "barrier" : "all_reduce"; }

double bus_bandwidth_factor(Collective collective, int ranks) {
  if (collective == Collective::barrier) return 0;
  return 2.0 * (ranks - 1) / ranks;
}

}  // namespace ddrun::collectives
