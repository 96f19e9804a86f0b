#include "gpu/nccl_rendezvous.hpp"

#include <limits>
#include <span>

#include "ddrun/base/text.hpp"
#include "ddrun/store/tcp_client.hpp"
#include "exchange.hpp"

namespace ddrun::collectives {

namespace {

constexpr char hex_digits[] = "0123456789abcdef";

std::string to_hex(const nccl::UniqueId& id) { return in_hex(std::as_bytes(std::span(id.internal))); }

Result<nccl::UniqueId> from_hex(const std::string& text, std::size_t rank) {
  nccl::UniqueId id{};
  const auto bad = [&] { return fail(Errc::protocol, concat("rank ", rank, " gave no id of NCCL: ", text)); };
  if (text.size() != 2 * id.internal.size()) return bad();
  for (std::size_t i = 0; i < id.internal.size(); ++i) {
    unsigned value = 0;
    for (const char digit : {text[2 * i], text[2 * i + 1]}) {
      const auto found = std::string_view(hex_digits).find(digit);
      if (found == std::string_view::npos) return bad();
      value = value << 4U | static_cast<unsigned>(found);
    }
    id.internal[i] = static_cast<char>(value);
  }
  return id;
}

Deadline soon() { return Clock::now() + std::chrono::seconds(2); }

}  // namespace

int ranks_per_nccl_id(const nccl::Library& library) {
  constexpr int many_ranks_per_id = 256;
  return library.comm_init_rank_scalable != nullptr ? many_ranks_per_id : std::numeric_limits<int>::max();
}

Result<std::vector<nccl::UniqueId>> exchange_nccl_ids(const Group& group, const nccl::Library& library,
                                                      int ranks_per_id, Deadline deadline) {
  // Ids are made by ranks on different machines, which share the bootstrap's load.
  const bool makes_one = group.rank % ranks_per_id == 0;
  nccl::UniqueId mine{};
  Result<void> made;
  if (makes_one) {
    const nccl::Status status = library.get_unique_id(&mine);
    if (status != nccl::success) {
      made = fail(Errc::unavailable, library.describe("ncclGetUniqueId", status, nullptr));
    }
  }
  const std::string line =
      made ? concat(library.version, ' ', makes_one ? to_hex(mine) : "") : concat("! ", made.error().message);
  const auto lines = TRY(exchange(group, "nccl", line, deadline));
  std::vector<nccl::UniqueId> ids;
  const std::string own_version = std::to_string(library.version);
  for (std::size_t rank = 0; rank < lines.size(); ++rank) {
    const std::string& line_of_rank = lines[rank];
    const std::string version = line_of_rank.substr(0, line_of_rank.find(' '));
    const std::string rest = line_of_rank.substr(std::min(line_of_rank.size(), version.size() + 1));
    if (version == "!") return fail(Errc::unavailable, concat("rank ", rank, ": ", rest));
    if (version != own_version) {
      return fail(Errc::invalid_argument, concat("rank ", group.rank, " has NCCL version ", own_version, ", rank ",
                                                 rank, " has ", version, ": all ranks must have the same"));
    }
    if (rest.empty()) continue;
    ids.push_back(TRY(from_hex(rest, rank)));
  }
  return ids;
}

FailureBoard::FailureBoard(const Group& group)
    : group_(group), key_(group.prefix + "nccl/failed"), pause_(200 + group.size / 5) {}

void FailureBoard::report(const Error& error) {
  if (group_.size == 1) return;
  (void)group_.store->compare_set(key_, "", concat("rank ", group_.rank, ": ", error.message), soon());
}

std::optional<Error> FailureBoard::failure() {
  if (group_.size == 1 || Clock::now() < next_) return std::nullopt;
  next_ = Clock::now() + pause_;
  const auto has_failure = group_.store->check({&key_, 1}, soon());
  if (!has_failure || !*has_failure) return std::nullopt;
  const auto words = group_.store->get(key_, soon());
  return Error{Errc::unavailable, words ? *words : std::string("another rank failed")};
}

}  // namespace ddrun::collectives
