#include "ending.hpp"

#include "ddrun/base/text.hpp"

namespace ddrun::rendezvous {

namespace {

/// A worker group that fails within this time has made no progress that a restart could use.
constexpr Milliseconds early_failure_time{1'000};

}  // namespace

std::string FailureHistory::add(const Ending& ending, Clock::time_point started_at, const JobSettings& settings) {
  if (!ending.is_restart() || ending.cause.kind != VerdictKind::worker_failed) return {};
  const FailureHistory last = *this;
  key_ = ending.details.key();
  exit_code_ = ending.cause.exit_code;
  at_start_ = ending.since - started_at <= early_failure_time;
  times_ = 1;
  const int max_same_cause = settings.restart.same_cause;
  if (max_same_cause == 0 || settings.node_max_failures > 0 || key_.empty()) return {};
  const bool same = key_ == last.key_;
  if (same) times_ += last.times_;
  const std::string what = concat("the same cause: ", key_);
  if (same && at_start_ && last.at_start_ && exit_code_ == last.exit_code_)
    return concat("the workers failed within ", causes::seconds_text(early_failure_time),
                  " of their start twice in a row, with ", what);
  return times_ >= max_same_cause ? concat(counted(times_, "failure"), " in a row had ", what) : std::string();
}

}  // namespace ddrun::rendezvous
