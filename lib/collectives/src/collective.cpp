#include "ddrun/collectives/collective.hpp"

#include <algorithm>
#include <string>

namespace ddrun::collectives {

namespace {

struct TypeFacts {
  std::string_view name;
  NumberKind kind;
};

constexpr std::array<TypeFacts, all_types.size()> type_table{{{"int8", NumberKind::signed_integer},
                                                              {"uint8", NumberKind::unsigned_integer},
                                                              {"int32", NumberKind::signed_integer},
                                                              {"uint32", NumberKind::unsigned_integer},
                                                              {"int64", NumberKind::signed_integer},
                                                              {"uint64", NumberKind::unsigned_integer},
                                                              {"half", NumberKind::floating},
                                                              {"float", NumberKind::floating},
                                                              {"double", NumberKind::floating},
                                                              {"bfloat16", NumberKind::floating}}};

constexpr std::array<std::string_view, all_ops.size()> op_names{"sum", "prod", "max", "min", "avg"};

const TypeFacts& facts(DataType type) { return type_table[static_cast<std::size_t>(type)]; }

struct CollectiveFacts {
  std::string_view name;
  bool reduces = false;
  bool has_root = false;
  bool all_in = false;   ///< the input has a block for every rank
  bool all_out = false;  ///< the output has a block for every rank
};

constexpr std::array<CollectiveFacts, all_collectives.size()> collective_table{{
    {"barrier"},
    {"all_reduce", true},
    {"broadcast", false, true},
    {"reduce", true, true},
    {"all_gather", false, false, false, true},
    {"reduce_scatter", true, false, true, false},
    {"gather", false, true, false, true},
    {"scatter", false, true, true, false},
    {"all_to_all", false, false, true, true},
    {"send_recv"},
}};

const CollectiveFacts& collective_facts(Collective collective) {
  return collective_table[static_cast<std::size_t>(collective)];
}

template <class Value, std::size_t Count>
std::optional<Value> named(const std::array<Value, Count>& all, std::string_view name) {
  const auto found = std::find_if(all.begin(), all.end(), [&](Value value) { return name_of(value) == name; });
  return found == all.end() ? std::nullopt : std::optional(*found);
}

}  // namespace

std::string_view name_of(DataType type) { return facts(type).name; }
NumberKind kind_of(DataType type) { return facts(type).kind; }
std::optional<DataType> data_type_named(std::string_view name) { return named(all_types, name); }

std::string_view name_of(ReduceOp op) { return op_names[static_cast<std::size_t>(op)]; }
std::optional<ReduceOp> reduce_op_named(std::string_view name) { return named(all_ops, name); }

std::string_view name_of(Collective collective) { return collective_facts(collective).name; }

std::optional<Collective> collective_named(std::string_view name) {
  const auto letters = [](std::string_view text) {
    std::string only(text);
    std::erase_if(only, [](char letter) { return letter == '_' || letter == '-'; });
    return only;
  };
  const auto found = std::find_if(all_collectives.begin(), all_collectives.end(),
                                  [&](Collective collective) { return letters(name_of(collective)) == letters(name); });
  return found == all_collectives.end() ? std::nullopt : std::optional(*found);
}

bool reduces(Collective collective) { return collective_facts(collective).reduces; }
bool has_root(Collective collective) { return collective_facts(collective).has_root; }

Blocks blocks_of(Collective collective, int ranks) {
  const auto all = static_cast<std::size_t>(ranks);
  const CollectiveFacts& facts = collective_facts(collective);
  return {facts.all_in ? all : 1, facts.all_out ? all : 1};
}

}  // namespace ddrun::collectives
