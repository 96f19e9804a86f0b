#include "ddrun/collectives/communicator.hpp"

#include <algorithm>

#include "back_ends.hpp"
#include "ddrun/base/text.hpp"
#include "exchange.hpp"
#include "gpu/survey.hpp"

namespace ddrun::collectives {

namespace {

/// Separates the fields of the line that ranks exchange: host, GPUs, options that must agree.
constexpr char unit_separator = '\x1f';

Result<void> compare(const std::string& first, const std::string& other, std::size_t rank) {
  const std::vector<std::string> first_fields = split(first, ' ');
  const std::vector<std::string> other_fields = split(other, ' ');
  for (std::size_t i = 0; i < std::max(first_fields.size(), other_fields.size()); ++i) {
    const std::string first_value = i < first_fields.size() ? first_fields[i] : "nothing";
    const std::string other_value = i < other_fields.size() ? other_fields[i] : "nothing";
    if (first_value == other_value) continue;
    return fail(Errc::invalid_argument, concat("rank 0 has ", first_value, ", rank ", rank, " has ", other_value,
                                               ": all ranks must have the same options"));
  }
  return {};
}

}  // namespace

bool in_place(const Call& call, int rank, int size) {
  const std::size_t own_block = static_cast<std::size_t>(rank) * call.bytes();
  const Blocks blocks = blocks_of(call.collective, size);
  if (blocks.in == blocks.out || call.in == nullptr || call.out == nullptr) return call.in == call.out;
  return blocks.out > 1 ? call.in == call.out + own_block : call.out == call.in + own_block;
}

Memory& Communicator::memory() { return host_memory(); }

std::string Communicator::unsupported_reason(Collective /*collective*/, DataType /*type*/, ReduceOp /*op*/,
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
  const std::string reason = unsupported_reason(call.collective, call.type, call.op, in_place(call, rank_, size_));
  if (!reason.empty()) return fail(Errc::invalid_argument, reason);
  return {};
}

Result<void> Communicator::perform(const Call& call, Deadline deadline) {
  if (!state_) return state_;
  TRY(check(call));
  ++calls_;
  last_ = call;
  begin_time_ = Clock::now();
  if (call.collective == Collective::barrier) return state_ = run(barrier_call(), deadline);
  if (fault_injector_ == nullptr) return state_ = run(call, deadline);
  Call injected = call;
  injected.in = fault_injector_->replace_input(call);
  state_ = run(injected, deadline);
  if (state_) fault_injector_->corrupt_output(call);
  return state_;
}

Result<double> Communicator::time(const Call& call, int times, Milliseconds timeout) {
  if (!state_) return tl::unexpected(state_.error());
  TRY(check(call));
  if (fault_injector_ == nullptr || call.collective == Collective::barrier) {
    const std::uint64_t before = calls_;
    last_ = call;
    begin_time_ = Clock::now();
    auto took = run_timed(call.collective == Collective::barrier ? barrier_call() : call, times, timeout);
    if (took) calls_ = before + static_cast<std::uint64_t>(times);
    if (!took) state_ = tl::unexpected(took.error());
    return took;
  }
  const auto start = Clock::now();
  for (int i = 0; i < times; ++i) TRY(perform(call, Clock::now() + timeout));
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

Result<double> Communicator::run_timed(const Call& call, int times, Milliseconds timeout) {
  // Reading the clock costs too much for each call of a microsecond.
  constexpr int calls_per_clock_read = 64;
  const auto start = Clock::now();
  Deadline deadline = start + timeout;
  for (int i = 0; i < times; ++i) {
    if (i % calls_per_clock_read == calls_per_clock_read - 1) {
      begin_time_ = Clock::now();
      deadline = begin_time_ + timeout;
    }
    ++calls_;
    TRY(run(call, deadline));
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

Call Communicator::barrier_call() {
  // A reduction returns on no rank before every rank has contributed.
  return {Collective::barrier, DataType::float32, ReduceOp::sum, 1, barrier_scratch_.data(), barrier_scratch_.data()};
}

Result<Connected> connect(const Group& group, const CommunicatorOptions& options, Deadline deadline) {
  const HostIdentity self = HostIdentity::of_this_process();
  const GpuUse gpus = back_end(options.backend).gpus;
  const GpuSurvey survey = gpus != GpuUse::none ? GpuSurvey::of_this_process(gpus == GpuUse::required) : GpuSurvey();
  const auto lines = TRY(exchange(
      group, "who", concat(self.line(), unit_separator, survey.line(), unit_separator, options.must_agree), deadline));
  Connected connected;
  std::vector<HostIdentity> all;
  std::vector<GpuSurvey> surveys;
  std::string agreed;
  for (std::size_t rank = 0; rank < lines.size(); ++rank) {
    const std::vector<std::string> parts = split(lines[rank], unit_separator);
    if (parts.size() < 3) return fail(Errc::protocol, concat("rank ", rank, " says too little of itself"));
    auto one = TRY(HostIdentity::parse(parts[0]));
    surveys.push_back(TRY(GpuSurvey::parse(parts[parts.size() - 2])));
    if (rank == 0) agreed = parts.back();
    TRY(compare(agreed, parts.back(), rank));
    connected.members.push_back({one.host, one.pid, format_processors(one.processors)});
    all.push_back(std::move(one));
  }
  auto chosen = TRY(connect_backend({group, options, all, surveys}, deadline));
  connected.communicator = std::move(chosen.communicator);
  connected.control = chosen.control ? std::move(chosen.control) : connected.communicator;
  connected.why = std::move(chosen.why);
  connected.communicator->fault_injector_ = options.fault_injector;
  return connected;
}

}  // namespace ddrun::collectives
