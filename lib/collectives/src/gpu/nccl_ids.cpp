#include "gpu/nccl_ids.hpp"

#include <limits>
#include <span>

#include "ddrun/base/text.hpp"
#include "exchange.hpp"

namespace ddrun::collectives {

namespace {

constexpr char kDigits[] = "0123456789abcdef";

std::string in_digits(const nccl::UniqueId& id) { return in_hex(std::as_bytes(std::span(id.internal))); }

Result<nccl::UniqueId> from_digits(const std::string& text, std::size_t rank) {
  nccl::UniqueId id{};
  const auto bad = [&] { return fail(Errc::protocol, concat("rank ", rank, " gave no id of NCCL: ", text)); };
  if (text.size() != 2 * id.internal.size()) return bad();
  for (std::size_t i = 0; i < id.internal.size(); ++i) {
    unsigned value = 0;
    for (const char digit : {text[2 * i], text[2 * i + 1]}) {
      const auto found = std::string_view(kDigits).find(digit);
      if (found == std::string_view::npos) return bad();
      value = value << 4U | static_cast<unsigned>(found);
    }
    id.internal[i] = static_cast<char>(value);
  }
  return id;
}

}  // namespace

int ranks_per_nccl_id(const nccl::Library& library) {
  constexpr int kMany = 256;
  return library.comm_init_rank_scalable != nullptr ? kMany : std::numeric_limits<int>::max();
}

Result<std::vector<nccl::UniqueId>> meet_for_nccl(const Group& group, const nccl::Library& library, int ranks_per_id,
                                                  Deadline deadline) {
  // Every so-many-th rank: those are on different machines, so each serves its part.
  const bool makes_one = group.rank % ranks_per_id == 0;
  nccl::UniqueId mine{};
  Result<void> made;
  if (makes_one) {
    const nccl::Status status = library.get_unique_id(&mine);
    if (status != nccl::kSuccess) {
      made = fail(Errc::unavailable, library.in_words("ncclGetUniqueId", status, nullptr));
    }
  }
  const std::string line =
      made ? concat(library.version, ' ', makes_one ? in_digits(mine) : "") : concat("! ", made.error().message);
  const auto lines = exchange(group, "nccl", line, deadline);
  if (!lines) return tl::unexpected(lines.error());
  std::vector<nccl::UniqueId> ids;
  const std::string ours = std::to_string(library.version);
  for (std::size_t rank = 0; rank < lines->size(); ++rank) {
    const std::string& said = (*lines)[rank];
    const std::string version = said.substr(0, said.find(' '));
    const std::string rest = said.substr(std::min(said.size(), version.size() + 1));
    if (version == "!") return fail(Errc::unavailable, concat("rank ", rank, ": ", rest));
    if (version != ours) {
      return fail(Errc::invalid_argument, concat("rank ", group.rank, " has NCCL version ", ours, ", rank ", rank,
                                                 " has ", version, ": all ranks must have the same"));
    }
    if (rest.empty()) continue;
    auto id = from_digits(rest, rank);
    if (!id) return tl::unexpected(id.error());
    ids.push_back(*id);
  }
  return ids;
}

}  // namespace ddrun::collectives
