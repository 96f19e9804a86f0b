#include "choose.hpp"

#include <utility>

#include "ddrun/base/text.hpp"
#include "exchange.hpp"
#include "gloo/backend.hpp"
#include "shm/communicator.hpp"
#include "tcp/communicator.hpp"
#include "two_level/communicator.hpp"
#include "two_level/host_groups.hpp"

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

Result<std::unique_ptr<Communicator>> connect_shm(const Group& group, const CommunicatorOptions& options,
                                                  const std::vector<HostIdentity>& all, Deadline deadline) {
  Result<std::shared_ptr<Segment>> segment;
  std::string announcement;
  if (group.rank == 0) {
    segment = Segment::create(ShmCommunicator::segment_bytes(group.size, options.buffer_bytes));
    if (segment) announcement = (*segment)->where();
  }
  // A failure of rank 0 shows in agree(): nobody can open what is not there, and rank 0's words come first.
  const auto where = exchange(group, "segment", announcement, deadline);
  if (!where) return tl::unexpected(where.error());
  if (group.rank != 0) segment = Segment::open((*where)[0]);

  std::vector<int> pids;
  for (const HostIdentity& one : all) pids.push_back(one.pid);
  const bool crowded = group.size > count_processors(all);
  auto made = segment.and_then([&](const std::shared_ptr<Segment>& opened) {
    return ShmCommunicator::start(opened, group.rank, pids, {options.buffer_bytes, crowded, options.private_way});
  });
  const Result<void> mine = made ? Result<void>() : Result<void>(tl::unexpected(made.error()));
  if (auto agreed = agree(group, "mapped", mine, deadline); !agreed) return tl::unexpected(agreed.error());
  if (auto met = (*made)->meet(deadline); !met) return tl::unexpected(met.error());
  return made;
}

/// Failures that another back end would not mend.
bool is_final(const Error& error) { return error.code == Errc::timeout || error.code == Errc::connection_lost; }

Result<Chosen> connect_tcp(const Group& group, const CommunicatorOptions& options, const std::vector<HostIdentity>& all,
                           std::string why, Deadline deadline) {
  TcpOptions tcp;
  tcp.buffer_bytes = options.buffer_bytes;
  tcp.streams = options.tcp_streams;
  tcp.crowded = is_crowded(all, group.rank);
  auto made = TcpCommunicator::connect(group, tcp, deadline);
  if (!made) return tl::unexpected(made.error());
  return Chosen{std::move(*made), std::move(why)};
}

Result<Chosen> choose_shm(const Group& group, const CommunicatorOptions& options, const std::vector<HostIdentity>& all,
                          Deadline deadline) {
  if (const std::string reason = what_prevents_shm(all); !reason.empty()) {
    return fail(Errc::unavailable, concat("no shared memory: ", reason));
  }
  auto made = connect_shm(group, options, all, deadline);
  if (!made) return tl::unexpected(made.error());
  return Chosen{std::move(*made), group.size == 1 ? "one rank" : "all ranks are on one machine"};
}

Result<Chosen> choose_any(const Group& group, const CommunicatorOptions& options, const std::vector<HostIdentity>& all,
                          Deadline deadline) {
  std::string why = what_prevents_shm(all);
  if (why.empty()) {
    auto chosen = choose_shm(group, options, all, deadline);
    if (chosen || is_final(chosen.error())) return chosen;
    return connect_tcp(group, options, all, chosen.error().message, deadline);
  }
  const HostGroups hosts = HostGroups::of(all);
  if (hosts.most() > 1) {
    auto made = TwoLevelCommunicator::connect(group, hosts, all, options, deadline);
    if (made) return Chosen{std::move(*made), concat(hosts.in_words(), ": shm inside each, tcp between them")};
    if (is_final(made.error())) return tl::unexpected(made.error());
    why = made.error().message;
  }
  return connect_tcp(group, options, all, why, deadline);
}

Result<Chosen> choose_gloo(const Group& group, CommunicatorOptions options, const std::vector<HostIdentity>& all,
                           Deadline deadline) {
  const std::size_t buffer_bytes = std::exchange(options.buffer_bytes, 0);
  auto control = choose_any(group, options, all, deadline);
  if (!control) return control;
  auto made = connect_gloo(group, buffer_bytes, control->communicator, deadline);
  const Result<void> mine = made ? Result<void>() : Result<void>(tl::unexpected(made.error()));
  if (auto agreed = agree(group, "with_gloo", mine, deadline); !agreed) return tl::unexpected(agreed.error());
  return Chosen{std::move(*made), "--backend=gloo", std::move(control->communicator)};
}

}  // namespace

Result<Chosen> choose(const Group& group, const CommunicatorOptions& options, const std::vector<HostIdentity>& all,
                      Deadline deadline) {
  if (auto there = probe(options.backend); !there) return tl::unexpected(there.error());
  switch (options.backend) {
    case Backend::shm: return choose_shm(group, options, all, deadline);
    case Backend::gloo: return choose_gloo(group, options, all, deadline);
    case Backend::tcp: return connect_tcp(group, options, all, "--backend=tcp", deadline);
    default: return choose_any(group, options, all, deadline);
  }
}

}  // namespace ddrun::collectives
