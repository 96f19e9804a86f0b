#include "ddrun/collectives/communicator.hpp"

#include <algorithm>

#include "back_ends.hpp"
#include "ddrun/base/text.hpp"
#include "describe.hpp"
#include "exchange.hpp"
#include "gpu/survey.hpp"

namespace ddrun::collectives {

namespace {

/// What a rank says first: who it is, and what must be the same everywhere.
constexpr char unit_separator = '\x1f';

Result<void> compare(const std::string& first, const std::string& other, std::size_t rank) {
  const std::vector<std::string> ours = split(first, ' ');
  const std::vector<std::string> theirs = split(other, ' ');
  for (std::size_t i = 0; i < std::max(ours.size(), theirs.size()); ++i) {
    const std::string mine = i < ours.size() ? ours[i] : "nothing";
    const std::string its = i < theirs.size() ? theirs[i] : "nothing";
    if (mine == its) continue;
    return fail(Errc::invalid_argument,
                concat("rank 0 has ", mine, ", rank ", rank, " has ", its, ": all ranks must have the same options"));
  }
  return {};
}

}  // namespace

bool in_place(const Call& call, int rank, int size) {
  const std::size_t mine = static_cast<std::size_t>(rank) * call.bytes();
  const Blocks blocks = blocks_of(call.collective, size);
  if (blocks.in == blocks.out || call.in == nullptr || call.out == nullptr) return call.in == call.out;
  return blocks.out > 1 ? call.in == call.out + mine : call.out == call.in + mine;
}

Memory& Communicator::memory() { return host_memory(); }

std::string Communicator::lacks(Collective /*collective*/, DataType /*type*/, ReduceOp /*op*/,
                                bool /*in_place*/) const {
  return {};
}

Result<void> Communicator::check(const Call& call) const {
  const auto is_rank = [&](int rank) { return rank >= 0 && rank < size_; };
  if (has_root(call.collective) && !is_rank(call.root)) {
    return fail(Errc::invalid_argument, concat("there is no rank ", call.root, " to be the root"));
  }
  if (call.collective == Collective::send_recv && (!is_rank(call.to) || !is_rank(call.from))) {
    return fail(Errc::invalid_argument, concat("there is no rank ", is_rank(call.to) ? call.from : call.to));
  }
  const std::string lacking = lacks(call.collective, call.type, call.op, in_place(call, rank_, size_));
  if (!lacking.empty()) return fail(Errc::invalid_argument, lacking);
  return {};
}

Result<void> Communicator::perform(const Call& call, Deadline deadline) {
  if (!state_) return state_;
  if (auto good = check(call); !good) return good;
  ++calls_;
  last_ = call;
  begun_ = Clock::now();
  if (call.collective == Collective::barrier) return state_ = run(meeting(), deadline);
  if (tap_ == nullptr) return state_ = run(call, deadline);
  Call tapped = call;
  tapped.in = tap_->contribution(call);
  state_ = run(tapped, deadline);
  if (state_) tap_->result(call);
  return state_;
}

Result<double> Communicator::time(const Call& call, int times, Milliseconds timeout) {
  if (!state_) return tl::unexpected(state_.error());
  if (auto good = check(call); !good) return tl::unexpected(good.error());
  if (tap_ == nullptr || call.collective == Collective::barrier) {
    const std::uint64_t before = calls_;
    last_ = call;
    begun_ = Clock::now();
    auto took = run_timed(call.collective == Collective::barrier ? meeting() : call, times, timeout);
    if (took) calls_ = before + static_cast<std::uint64_t>(times);
    if (!took) state_ = tl::unexpected(took.error());
    return took;
  }
  const auto start = Clock::now();
  for (int i = 0; i < times; ++i) {
    if (auto done = perform(call, Clock::now() + timeout); !done) return tl::unexpected(done.error());
  }
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

Result<double> Communicator::run_timed(const Call& call, int times, Milliseconds timeout) {
  // A call of microseconds does not need a look at the clock of its own.
  constexpr int calls_per_look = 64;
  const auto start = Clock::now();
  Deadline deadline = start + timeout;
  for (int i = 0; i < times; ++i) {
    if (i % calls_per_look == calls_per_look - 1) {
      begun_ = Clock::now();
      deadline = begun_ + timeout;
    }
    ++calls_;
    if (auto done = run(call, deadline); !done) return tl::unexpected(done.error());
  }
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

std::string Communicator::last_call() const {
  if (calls_ == 0) return {};
  const std::string bytes = last_.collective == Collective::barrier ? "" : concat(", ", last_.bytes(), " bytes");
  return concat(name_of(last_.collective), bytes, ", iteration ", calls_);
}

Result<void> Communicator::all_reduce(std::span<const std::byte> in, std::span<std::byte> out, DataType type,
                                      ReduceOp op, Deadline deadline) {
  if (in.size() != out.size()) return fail(Errc::invalid_argument, "input and output differ in size");
  if (in.size() % size_of(type) != 0) {
    return fail(Errc::invalid_argument,
                concat(in.size(), " bytes are no whole number of ", name_of(type), ": each has ", size_of(type)));
  }
  return perform({Collective::all_reduce, type, op, in.size() / size_of(type), in.data(), out.data()}, deadline);
}

Result<void> Communicator::barrier(Deadline deadline) {
  Call call;
  call.collective = Collective::barrier;
  return perform(call, deadline);
}

Call Communicator::meeting() {
  // No rank can know a sum before all have given a part of it.
  return {Collective::barrier, DataType::float32, ReduceOp::sum, 1, nothing_.data(), nothing_.data()};
}

Result<Connected> connect(const Group& group, const CommunicatorOptions& options, Deadline deadline) {
  const HostIdentity me = HostIdentity::mine();
  const Gpus gpus = back_end(options.backend).gpus;
  const GpuSurvey survey = gpus != Gpus::unused ? GpuSurvey::mine(gpus == Gpus::needed) : GpuSurvey();
  const auto lines = exchange(
      group, "who", concat(me.line(), unit_separator, survey.line(), unit_separator, options.must_agree), deadline);
  if (!lines) return tl::unexpected(lines.error());
  Connected connected;
  std::vector<HostIdentity> all;
  std::vector<GpuSurvey> surveys;
  std::string agreed;
  for (std::size_t rank = 0; rank < lines->size(); ++rank) {
    const std::vector<std::string> parts = split((*lines)[rank], unit_separator);
    if (parts.size() < 3) return fail(Errc::protocol, concat("rank ", rank, " says too little of itself"));
    auto one = HostIdentity::parse(parts[0]);
    if (!one) return tl::unexpected(one.error());
    auto its_gpus = GpuSurvey::parse(parts[parts.size() - 2]);
    if (!its_gpus) return tl::unexpected(its_gpus.error());
    surveys.push_back(std::move(*its_gpus));
    if (rank == 0) agreed = parts.back();
    if (auto same = compare(agreed, parts.back(), rank); !same) return tl::unexpected(same.error());
    connected.members.push_back({one->host, one->pid, processors_in_words(one->processors)});
    all.push_back(std::move(*one));
  }
  auto chosen = choose({group, options, all, surveys}, deadline);
  if (!chosen) return tl::unexpected(chosen.error());
  connected.communicator = std::move(chosen->communicator);
  connected.control = chosen->control ? std::move(chosen->control) : connected.communicator;
  connected.why = std::move(chosen->why);
  connected.communicator->tap_ = options.tap;
  return connected;
}

}  // namespace ddrun::collectives
