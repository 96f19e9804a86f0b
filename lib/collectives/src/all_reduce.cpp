#include "ddrun/collectives/all_reduce.hpp"

#include "ddrun/base/text.hpp"
#include "exchange.hpp"
#include "host_identity.hpp"
#include "shm_all_reduce.hpp"
#include "tcp_all_reduce.hpp"

namespace ddrun::collectives {

namespace {

/// Empty if all of them can share memory, else what stands against it.
std::string what_prevents_shm(const std::vector<HostIdentity>& all) {
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].place.empty() && all.size() > 1) return concat("/proc tells rank ", rank, " too little");
    if (all[rank].place != all[0].place) {
      return concat("rank 0 and rank ", rank,
                    " run on different machines, in different containers or as different users");
    }
  }
  return {};
}

Result<std::unique_ptr<AllReduce>> connect_shm(const Group& group, const AllReduceOptions& options,
                                               const std::vector<HostIdentity>& all, Deadline deadline) {
  Result<std::shared_ptr<Segment>> segment;
  std::string announcement;
  if (group.rank == 0) {
    segment = Segment::create(ShmAllReduce::segment_bytes(group.size, options.buffer_count));
    if (segment) announcement = (*segment)->where();
  }
  // A failure of rank 0 shows in agree(): nobody can open what is not there, and rank 0's words come first.
  const auto where = exchange(group, "segment", announcement, deadline);
  if (!where) return tl::unexpected(where.error());
  if (group.rank != 0) segment = Segment::open((*where)[0]);

  std::vector<int> pids;
  for (const HostIdentity& one : all) pids.push_back(one.pid);
  const bool crowded = group.size > count_processors(all);
  Result<std::unique_ptr<AllReduce>> made = segment.and_then([&](const std::shared_ptr<Segment>& opened) {
    return ShmAllReduce::start(opened, group.rank, pids, options.buffer_count, crowded);
  });
  const Result<void> mine = made ? Result<void>() : Result<void>(tl::unexpected(made.error()));
  if (auto agreed = agree(group, "mapped", mine, deadline); !agreed) return tl::unexpected(agreed.error());
  return made;
}

}  // namespace

Result<void> AllReduce::barrier(Deadline deadline) {
  // Nobody can know a sum before everybody has given a part of it.
  float nothing = 0;
  return sum_in_place({&nothing, 1}, deadline);
}

Result<Connected> connect(const Group& group, const AllReduceOptions& options, Deadline deadline) {
  const auto lines = exchange(group, "who", HostIdentity::mine().line(), deadline);
  if (!lines) return tl::unexpected(lines.error());
  Connected connected;
  std::vector<HostIdentity> all;
  for (const std::string& line : *lines) {
    auto one = HostIdentity::parse(line);
    if (!one) return tl::unexpected(one.error());
    connected.members.push_back({one->host, one->pid});
    all.push_back(std::move(*one));
  }

  // Everybody decides from the same facts, so nobody has to announce the decision.
  if (options.backend != Backend::tcp) {
    connected.why_not_shm = what_prevents_shm(all);
    if (connected.why_not_shm.empty()) {
      auto made = connect_shm(group, options, all, deadline);
      if (made) {
        connected.all_reduce = std::move(*made);
        return connected;
      }
      if (options.backend == Backend::shm || made.error().code == Errc::timeout ||
          made.error().code == Errc::connection_lost) {
        return tl::unexpected(made.error());
      }
      connected.why_not_shm = made.error().message;
    } else if (options.backend == Backend::shm) {
      return fail(Errc::unavailable, concat("no shared memory: ", connected.why_not_shm));
    }
  }
  auto made = TcpAllReduce::connect(group, options.buffer_count, deadline);
  if (!made) return tl::unexpected(made.error());
  connected.all_reduce = std::move(*made);
  return connected;
}

}  // namespace ddrun::collectives
