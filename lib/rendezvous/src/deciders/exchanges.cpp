#include "exchanges.hpp"

#include <algorithm>
#include <utility>

#include "ddrun/base/text.hpp"

namespace ddrun::rendezvous {

namespace {

constexpr std::size_t mebibyte = 1024 * 1024;
/// Of a message, but for a single larger blob.
constexpr std::size_t max_part_bytes = mebibyte;
constexpr std::size_t max_blob_bytes = 3 * mebibyte;
/// Of a tag, as copied for all members: heartbeats behind them pass in time on a gigabit link.
constexpr std::size_t max_copied_bytes = 256 * mebibyte;

}  // namespace

void Exchanges::begin(Round round, std::size_t members) {
  round_ = round;
  next_.assign(members, 0);
  complete_ = 0;
  open_ = {};
}

Result<std::vector<Exchanged>> Exchanges::add(int node_rank, const Exchange& from) {
  std::vector<Exchanged> parts;
  std::uint32_t& next = next_.at(static_cast<std::size_t>(node_rank));
  const std::uint32_t number = from.tag & ~other_order;
  if (number != next || number - complete_ >= open_.size()) return parts;
  ++next;
  Open& open = open_[number % open_.size()];
  open.blobs.resize(next_.size());
  open.blobs[static_cast<std::size_t>(node_rank)] = from.blob;
  open.bytes += from.blob.size();
  const std::size_t limit = max_copied_bytes / next_.size();
  if (from.blob.size() > max_blob_bytes || open.bytes > limit) {
    return fail(Errc::unavailable, concat("the MPI ranks put too many keys for one exchange between ", next_.size(),
                                          " machines: more than 3 MiB on one, or ", limit / 1024, " KiB on all"));
  }
  if (++open.count < next_.size()) return parts;
  ++complete_;
  std::size_t room = 0;
  for (std::size_t rank = 0; std::string & blob : std::exchange(open, {}).blobs) {
    if (parts.empty() || blob.size() > room) {
      parts.push_back({round_, from.tag, static_cast<std::uint32_t>(rank), {}, false});
      room = std::max(max_part_bytes, blob.size());
    }
    room -= blob.size();
    parts.back().blobs.push_back(std::move(blob));
    ++rank;
  }
  parts.back().last = true;
  return parts;
}

}  // namespace ddrun::rendezvous
