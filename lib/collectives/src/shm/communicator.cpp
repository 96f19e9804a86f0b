#include "shm/communicator.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <system_error>
#include <thread>

#include "ddrun/base/text.hpp"
#include "ddrun/collectives/pattern.hpp"
#include "describe.hpp"
#include "exchange.hpp"

namespace ddrun::collectives {

namespace {

/// Limit of all slots that one call reads.
constexpr std::size_t slots_total = 64 << 10;

/// Smallest transfer between two ranks that is copied across processes. Below it two local copies are cheaper than the
/// system call, which costs about 1 µs plus 0.1 µs per page.
constexpr std::size_t min_cross_process = 32 << 10;

/// Largest group whose data is copied across processes. Where each rank needs data of every other one, staging copies
/// it once for all of them, and local copies are faster: with n ranks an all_reduce copies 2 (n - 1) / n of its bytes
/// per rank across processes, or 1 + (n - 1) / n locally. Measured with 2, 3, 4 and 8 ranks on two processors.
int max_cross_process_ranks(Collective collective) {
  switch (collective) {
    case Collective::all_reduce:
    case Collective::reduce:
    case Collective::reduce_scatter: return 3;
    case Collective::all_gather:
    case Collective::all_to_all: return 4;
    default: return std::numeric_limits<int>::max();
  }
}

/// How private memory is copied where cross-process copies are possible.
std::string_view describe_copies(int ranks) {
  if (ranks <= max_cross_process_ranks(Collective::reduce)) return "copied once";
  if (ranks <= max_cross_process_ranks(Collective::all_gather)) return "copied once, by reductions twice";
  return "copied once by broadcast, gather, scatter and send_recv, else twice";
}

/// Longest time that a rank with a failed call waits for peers that are accessing its memory. They access it part by
/// part; only a peer that is stopped within a part takes longer.
constexpr auto max_work_wait = std::chrono::seconds(1);
constexpr auto poll_interval = std::chrono::microseconds(100);

/// Bytes of a line that are available for a call's input.
std::size_t line_bytes(Collective collective) {
  return sizeof(Line::data) - (collective == Collective::send_recv ? sizeof(Partners) : 0);
}

}  // namespace

Result<std::unique_ptr<ShmCommunicator>> ShmCommunicator::start(std::shared_ptr<Segment> segment, int rank,
                                                                const std::vector<int>& pids, const Options& options) {
  const int size = static_cast<int>(pids.size());
  const Layout layout(size, options.buffer_bytes);
  if (segment->size() != layout.end()) {
    return fail(Errc::invalid_argument, concat("rank 0 shares ", segment->size(), " bytes, rank ", rank, " expects ",
                                               layout.end(), ": do all ranks have the same options?"));
  }
  // Each rank reserves its own part, so that all processors share the zeroing of pages.
  TRY(segment->reserve(layout.buffer(rank, 0), layout.buffer(rank, 2) - layout.buffer(rank, 0)));
  std::unique_ptr<ShmCommunicator> made(new ShmCommunicator(std::move(segment), rank, pids, options));
  std::vector<PeerWatch::Peer> peers;
  for (int step = 1; step < size; ++step) {
    const int peer = (rank + step) % size;
    peers.push_back({peer, pids[static_cast<std::size_t>(peer)]});
  }
  TRY(made->watch_.start(*made->at<Control>(0), peers));
  return made;
}

ShmCommunicator::ShmCommunicator(std::shared_ptr<Segment> segment, int rank, std::vector<int> pids,
                                 const Options& options)
    : Communicator(rank, static_cast<int>(pids.size())),
      segment_(std::move(segment)),
      layout_(size(), options.buffer_bytes),
      barrier_(*at<Control>(0), at<Line>(layout_.lines()), rank, size(), options.oversubscribed),
      pids_(std::move(pids)),
      private_copy_(options.private_copy),
      mover_(pids_),
      direct_(mover_, rank, size()),
      staging_(segment_->data(), layout_, barrier_, rank, size()),
      peer_buffers_(pids_.size()),
      from_(pids_.size()),
      places_(pids_.size()) {}

ShmCommunicator::~ShmCommunicator() {
  // Wakes peers that wait for this rank. Peers past the last barrier no longer check.
  report_lost(*at<Control>(0), rank());
}

Result<void> ShmCommunicator::probe_private_access(Deadline deadline) {
  if (size() == 1 || private_copy_ == PrivateCopy::staged) return {};
  ptrace_grant_.emplace();
  probe_.token = random_word(static_cast<std::uint64_t>(rank()), reinterpret_cast<std::uintptr_t>(&probe_), 0);
  const AccessProbe::Handle handle{reinterpret_cast<std::uintptr_t>(&probe_), probe_.token};
  std::memcpy(barrier_.own_line().data.data(), &handle, sizeof(handle));
  if (auto passed = barrier_.wait(deadline); !passed) return abandon(passed.error());
  for (int peer = 0; peer < size(); ++peer) {
    std::memcpy(&peer_probes_.emplace_back(), barrier_.line_of(peer).data.data(), sizeof(AccessProbe::Handle));
  }
  std::optional<Mover::Failure> failure;
  const bool begun = begin_work();
  for (int peer = 0; begun && peer < size() && !failure; ++peer) {
    if (peer == rank()) continue;
    const auto index = static_cast<std::size_t>(peer);
    const int error = probe_process(pids_[index], peer_probes_[index]);
    if (error != 0) failure = Mover::Failure{peer, error};
  }
  const auto access_failure = end_work(failure, deadline);
  if (!access_failure) return abandon(access_failure.error());
  cross_process_ = !*access_failure;
  if (cross_process_) return {};
  staged_reason_ = (**access_failure).describe();
  ptrace_grant_.reset();
  if (private_copy_ != PrivateCopy::cross_process) return {};
  return fail(Errc::unsupported, concat("private memory cannot go across: ", staged_reason_));
}

std::string ShmCommunicator::details() const {
  std::string details = segment_->pages();
  if (size() == 1) return details;
  details += concat("; private memory is ", cross_process_ ? describe_copies(size()) : "copied twice");
  if (!staged_reason_.empty()) details += concat(": ", staged_reason_);
  return details;
}

std::atomic<std::uint32_t>& ShmCommunicator::working(std::size_t rank) const {
  return at<Line>(layout_.lines())[2 * rank].working;
}

bool ShmCommunicator::begin_work() {
  // Sequentially consistent on both sides: either this rank sees the abandoned call, or the abandoning rank sees this
  // one at work.
  ++work_count_;
  at_work_ = true;
  working(static_cast<std::size_t>(rank())).store(1);
  return at<Control>(0)->abandoned.load() == 0;
}

Result<std::optional<ShmCommunicator::AccessFailure>> ShmCommunicator::end_work(
    const std::optional<Mover::Failure>& failure, Deadline deadline) {
  working(static_cast<std::size_t>(rank())).store(0);
  Line& mine = barrier_.own_line();
  mine.kind = failure ? static_cast<std::uint32_t>(failure->error) : 0;
  mine.count = failure ? static_cast<std::uint64_t>(failure->rank) : 0;
  TRY(barrier_.wait(deadline));
  for (int peer = 0; peer < size(); ++peer) {
    const Line& theirs = barrier_.line_of(peer);
    if (theirs.kind == 0) continue;
    return AccessFailure{peer, {static_cast<int>(theirs.count), static_cast<int>(theirs.kind)}};
  }
  // Checked after access failures, which all ranks report alike. A faster rank may already have abandoned the next
  // call.
  const std::uint32_t abandoned = at<Control>(0)->abandoned.load();
  at_work_ = false;
  if (abandoned != 0 && abandoned <= work_count_) {
    return fail(Errc::timeout, concat("rank ", rank(), " came so late that others have given up"));
  }
  return std::nullopt;
}

std::string ShmCommunicator::AccessFailure::describe() const {
  const std::error_code cause(failure.error, std::generic_category());
  return concat("rank ", by, " does not reach the memory of rank ", failure.rank, " (", cause.message(), ')');
}

tl::unexpected<Error> ShmCommunicator::abandon(Error error) {
  std::uint32_t none = 0;
  at<Control>(0)->abandoned.compare_exchange_strong(none, at_work_ ? work_count_ : work_count_ + 1);
  const Deadline until = Clock::now() + max_work_wait;
  for (std::size_t peer = 0; peer < pids_.size(); ++peer) {
    if (static_cast<int>(peer) == rank()) continue;
    const auto is_gone = [&] { return peer < peer_probes_.size() && is_process_gone(pids_[peer], peer_probes_[peer]); };
    while (working(peer).load() != 0 && !is_gone() && Clock::now() < until) {
      std::this_thread::sleep_for(poll_interval);
    }
  }
  return tl::unexpected(std::move(error));
}

std::optional<Error> ShmCommunicator::async_error() { return lost_rank(*at<Control>(0)); }

template <class T>
T* ShmCommunicator::at(std::size_t offset) const {
  return reinterpret_cast<T*>(segment_->data() + offset);
}

std::span<std::byte> ShmCommunicator::send_buffer() { return {at(layout_.buffer(rank(), 0)), layout_.buffer_bytes()}; }

std::span<std::byte> ShmCommunicator::recv_buffer() { return {at(layout_.buffer(rank(), 1)), layout_.buffer_bytes()}; }

std::uint64_t ShmCommunicator::offset_of(const std::byte* data, std::size_t bytes) const {
  const auto start = reinterpret_cast<std::uintptr_t>(segment_->data());
  const auto first = reinterpret_cast<std::uintptr_t>(data);
  if (first < start || first + bytes > start + segment_->size()) return not_shared;
  return first - start;
}

RankAddress ShmCommunicator::address_of(int rank, std::uint64_t offset, std::uint64_t address) const {
  if (offset != not_shared) return {at(offset)};
  auto* const data = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address));
  return {data, rank == this->rank() ? RankAddress::local : rank};
}

PeerBuffers ShmCommunicator::peer_buffers(int rank) const {
  const Line& line = barrier_.line_of(rank);
  Addresses addresses{};
  std::memcpy(&addresses, line.data.data(), sizeof(addresses));
  PeerBuffers buffers{address_of(rank, line.in, addresses.in), address_of(rank, line.out, addresses.out),
                      line.in != not_shared, line.out != not_shared};
  std::memcpy(&buffers.partners, line.data.data() + line_bytes(Collective::send_recv), sizeof(Partners));
  return buffers;
}

Result<void> ShmCommunicator::announce(const Call& call, Deadline deadline) {
  Line& mine = barrier_.own_line();
  mine.kind = kind_of(call);
  mine.count = call.count;
  if (call.collective == Collective::send_recv) {
    const Partners peers{call.to, call.from};
    std::memcpy(mine.data.data() + line_bytes(call.collective), &peers, sizeof(peers));
  }
  TRY(barrier_.wait(deadline));
  for (int peer = 0; peer < size(); ++peer) {
    const Line& theirs = barrier_.line_of(peer);
    if (theirs.count != call.count || theirs.kind != kind_of(call)) {
      return call_mismatch(peer, theirs.kind, theirs.count, rank(), call);
    }
  }
  return call.collective == Collective::send_recv ? compare_peers() : Result<void>();
}

Result<void> ShmCommunicator::compare_peers() const {
  for (int peer = 0; peer < size(); ++peer) {
    const int from = peer_buffers(peer).partners.from;
    const int to = peer_buffers(from).partners.to;
    if (to != peer) return send_recv_mismatch(peer, from, to);
  }
  return {};
}

Result<void> ShmCommunicator::run(const Call& call, Deadline deadline) {
  if (size() == 1) {
    if (call.in != call.out) std::memcpy(call.out, call.in, call.bytes());
    return {};
  }
  const std::size_t bytes = call.bytes() * blocks_of(call.collective, size()).in;
  if (bytes <= line_bytes(call.collective)) return run_small(call, true, deadline);
  if (bytes <= std::min(Layout::slot_bytes, slots_total / static_cast<std::size_t>(size()))) {
    return run_small(call, false, deadline);
  }
  return run_large(call, deadline);
}

Result<void> ShmCommunicator::run_small(const Call& call, bool in_lines, Deadline deadline) {
  const Part all{0, call.count, call.bytes()};
  const unsigned parity = barrier_.next_parity();
  pack(call, rank(), size(), all, in_lines ? barrier_.own_line().data.data() : at(layout_.slot(rank(), parity)));
  TRY(announce(call, deadline));
  for (int peer = 0; peer < size(); ++peer) {
    places_[static_cast<std::size_t>(peer)] =
        in_lines ? barrier_.line_of(peer).data.data() : at(layout_.slot(peer, parity));
  }
  unpack(call, rank(), all, places_, from_, Stores::normal);
  return {};
}

bool ShmCommunicator::uses_cross_process(const Call& call) const {
  if (!cross_process_) return false;
  if (private_copy_ == PrivateCopy::cross_process) return true;
  if (size() > max_cross_process_ranks(call.collective)) return false;
  const bool shared_out = call.collective == Collective::broadcast || call.collective == Collective::all_reduce ||
                          call.collective == Collective::reduce;
  return call.bytes() / (shared_out ? static_cast<std::size_t>(size()) : 1) >= min_cross_process;
}

Result<void> ShmCommunicator::run_large(const Call& call, Deadline deadline) {
  auto done = run_direct_or_staged(call, deadline);
  if (!done && cross_process_) return abandon(done.error());
  return done;
}

Result<void> ShmCommunicator::run_direct_or_staged(const Call& call, Deadline deadline) {
  const Blocks blocks = blocks_of(call.collective, size());
  Line& mine = barrier_.own_line();
  mine.in = offset_of(call.in, call.bytes() * blocks.in);
  mine.out = offset_of(call.out, call.bytes() * blocks.out);
  const Addresses addresses{reinterpret_cast<std::uintptr_t>(call.in), reinterpret_cast<std::uintptr_t>(call.out)};
  std::memcpy(mine.data.data(), &addresses, sizeof(addresses));
  const bool cross_process = uses_cross_process(call);
  // A rank that will stage its data packs the first part before the barrier.
  const PeerBuffers own{{}, {}, mine.in != not_shared, mine.out != not_shared, {call.to, call.from}};
  if (!cross_process && DirectTransfer::is_private(call, rank(), own)) staging_.begin(call);
  TRY(announce(call, deadline));
  bool begun = !cross_process;
  Call peer_call = call;
  for (int peer = 0; peer < size(); ++peer) {
    PeerBuffers& buffers = peer_buffers_[static_cast<std::size_t>(peer)];
    buffers = peer_buffers(peer);
    peer_call.to = buffers.partners.to;
    begun = begun && (!Staging::has_input(peer_call, peer) || DirectTransfer::is_private(peer_call, peer, buffers));
  }
  const bool any_private = direct_.any_private(call, peer_buffers_);
  if (!direct_.is_possible(call, peer_buffers_) || (any_private && !cross_process))
    return staging_.run(call, begun, deadline);
  if (!any_private) {
    direct_.run(call, peer_buffers_, false);
    return barrier_.wait(deadline);
  }
  if (begin_work()) direct_.run(call, peer_buffers_, true);
  const auto access_failure = TRY(end_work(mover_.take_failure(), deadline));
  if (!access_failure) return {};
  const AccessFailure& first = *access_failure;
  // The peer had finished its own part before.
  if (first.failure.error == ESRCH) return fail(Errc::connection_lost, concat("rank ", first.failure.rank, " is gone"));
  return fail(Errc::unavailable, concat(first.describe(), ": is all of it there, as plain memory of the process?"));
}

Eligibility shm_eligibility(const Ranks& ranks) {
  const std::vector<HostIdentity>& all = ranks.hosts;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].memory_domain.empty() && all.size() > 1)
      return {false, concat("/proc tells rank ", rank, " too little")};
    if (all[rank].memory_domain != all[0].memory_domain) {
      return {false, concat("rank 0 and rank ", rank,
                            " run on different machines, in different containers or as different users")};
    }
  }
  return {};
}

namespace {

/// Creates, maps and reserves the memory, on all ranks or on none. Without `huge` as input it is of small pages; as
/// output: whether it was of huge ones.
Result<std::unique_ptr<ShmCommunicator>> share_memory(const Ranks& ranks, bool& huge, Deadline deadline) {
  const Group& group = ranks.group;
  const CommunicatorOptions& options = ranks.options;
  const std::string_view which = huge ? "" : " of small pages";
  Result<std::shared_ptr<Segment>> segment;
  std::string location;
  if (group.rank == 0) {
    const Layout layout(group.size, options.buffer_bytes);
    segment = Segment::create(layout.end(), layout.buffers(), huge);
    if (segment) location = (*segment)->location();
  }
  // agree() reports a failure of rank 0: no other rank can open the segment then, and rank 0's message comes first.
  const auto where = TRY(exchange(group, concat("segment", which), location, deadline));
  if (group.rank != 0) segment = Segment::open(where[0]);
  huge = Segment::has_huge_pages(where[0]);

  std::vector<int> pids;
  for (const HostIdentity& one : ranks.hosts) pids.push_back(one.pid);
  const bool oversubscribed = group.size > count_processors(ranks.hosts);
  auto made = segment.and_then([&](const std::shared_ptr<Segment>& opened) {
    return ShmCommunicator::start(opened, group.rank, pids,
                                  {options.buffer_bytes, oversubscribed, options.private_copy});
  });
  const Result<void> mine = made ? Result<void>() : Result<void>(tl::unexpected(made.error()));
  TRY(agree(group, concat("mapped", which), mine, deadline));
  return made;
}

}  // namespace

Result<BackendConnection> connect_shm(const Ranks& ranks, Deadline deadline) {
  if (const Eligibility verdict = shm_eligibility(ranks); !verdict.eligible) {
    return fail(Errc::unavailable, concat("no shared memory: ", verdict.reason));
  }
  bool huge = true;
  auto made = share_memory(ranks, huge, deadline);
  // A control group without a share of the huge pages (hugetlb.2MB.max) denies them when they are first used.
  if (!made && huge && made.error().code == Errc::unavailable) made = share_memory(ranks, huge = false, deadline);
  if (!made) return tl::unexpected(made.error());
  TRY((*made)->probe_private_access(deadline));
  return BackendConnection{std::move(*made), ranks.group.size == 1 ? "one rank" : "all ranks are on one machine"};
}

}  // namespace ddrun::collectives
