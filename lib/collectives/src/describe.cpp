#include "describe.hpp"

#include "ddrun/base/text.hpp"

namespace ddrun::collectives {

namespace {

// Bit fields of a kind: 4 collective, 4 type, 3 operation, 21 root.
constexpr unsigned type_at = 4;
constexpr unsigned op_at = 8;
constexpr unsigned root_at = 11;

constexpr std::uint32_t bits(std::uint32_t kind, unsigned from, unsigned to) {
  return (kind >> from) & ((1U << (to - from)) - 1);
}

}  // namespace

std::string describe(std::uint32_t kind, std::uint64_t count) {
  const std::uint32_t collective = bits(kind, 0, type_at);
  const std::uint32_t type = bits(kind, type_at, op_at);
  const std::uint32_t op = bits(kind, op_at, root_at);
  if (collective >= all_collectives.size() || type >= all_types.size() || op >= all_ops.size()) {
    return "something unknown";
  }
  const auto what = static_cast<Collective>(collective);
  if (what == Collective::barrier) return std::string(name_of(what));
  std::string words = concat(name_of(what), " of ", count, ' ', name_of(static_cast<DataType>(type)));
  if (reduces(what)) words += concat(", ", name_of(static_cast<ReduceOp>(op)));
  if (has_root(what)) words += concat(", root ", kind >> root_at);
  return words;
}

std::uint32_t kind_of(const Call& call) {
  std::uint32_t kind = static_cast<std::uint32_t>(call.collective);
  kind |= static_cast<std::uint32_t>(call.type) << type_at;
  if (reduces(call.collective)) kind |= static_cast<std::uint32_t>(call.op) << op_at;
  if (has_root(call.collective)) kind |= static_cast<std::uint32_t>(call.root) << root_at;
  return kind;
}

tl::unexpected<Error> call_mismatch(int rank, std::uint32_t kind, std::uint64_t count, int own_rank, const Call& own) {
  return fail(Errc::invalid_argument,
              concat("rank ", rank, " calls ", describe(kind, count), ", rank ", own_rank, ' ',
                     describe(kind_of(own), own.count), ": all ranks must make the same calls"));
}

tl::unexpected<Error> send_recv_mismatch(int rank, int from, int to) {
  return fail(Errc::invalid_argument, concat("rank ", rank, " receives from rank ", from, ", which sends to rank ", to,
                                             ": who is received from must send there"));
}

tl::unexpected<Error> self_send_mismatch(int rank, int to, int from) {
  return fail(Errc::invalid_argument, concat("rank ", rank, " sends to rank ", to, " and receives from rank ", from,
                                             ": who sends to itself receives from itself"));
}

}  // namespace ddrun::collectives
