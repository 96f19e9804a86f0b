#include "call_words.hpp"

#include "ddrun/base/text.hpp"

namespace ddrun::collectives {

namespace {

constexpr unsigned kByte = 0xff;

/// "all_reduce of 4 float, sum"
std::string in_words(std::uint32_t kind, std::uint64_t count) {
  const std::uint32_t collective = kind >> 16U;
  const std::uint32_t type = (kind >> 8U) & kByte;
  const std::uint32_t op = kind & kByte;
  if (collective > static_cast<std::uint32_t>(Collective::all_reduce) || type >= kDataTypes.size() ||
      op >= kReduceOps.size()) {
    return "something unknown";
  }
  const auto what = static_cast<Collective>(collective);
  if (what == Collective::barrier) return std::string(name_of(what));
  return concat(name_of(what), " of ", count, ' ', name_of(static_cast<DataType>(type)), ", ",
                name_of(static_cast<ReduceOp>(op)));
}

}  // namespace

std::uint32_t kind_of(const Call& call) {
  return static_cast<std::uint32_t>(call.collective) << 16U | static_cast<std::uint32_t>(call.type) << 8U |
         static_cast<std::uint32_t>(call.op);
}

tl::unexpected<Error> different_calls(int rank, std::uint32_t kind, std::uint64_t count, int own_rank,
                                      const Call& own) {
  return fail(Errc::invalid_argument,
              concat("rank ", rank, " calls ", in_words(kind, count), ", rank ", own_rank, ' ',
                     in_words(kind_of(own), own.count), ": all ranks must make the same calls"));
}

}  // namespace ddrun::collectives
