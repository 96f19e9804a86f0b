#include "ddrun/logs/stream_plan.hpp"

namespace ddrun::logs {

StreamPlan plan_stream(const LogSpec& log, StreamId stream, int local_rank, int local_world_size, StreamPlaces places) {
  const auto has = [&](const StreamSelection& selection) {
    const Streams streams = selection.of(local_rank);
    return stream == StreamId::out ? has_out(streams) : has_err(streams);
  };
  const auto& filters = stream == StreamId::out ? log.duplicate_stdout_filters : log.duplicate_stderr_filters;
  const bool listed = !log.local_ranks_filter || log.local_ranks_filter->contains(local_rank);
  const bool redirected = has(log.redirects);

  StreamPlan plan;
  plan.teed = has(log.tee);
  plan.file = places.files && (redirected || plan.teed);
  plan.console = listed && (plan.teed || !redirected);
  plan.duplicate = places.files && !filters.empty();

  const bool decorated = local_world_size > 1 || plan.teed || log.timestamps || !log.line_prefix_template.empty() ||
                         (log.label != Label::automatic && log.label != Label::none);
  const bool piped =
      (plan.console && (decorated || plan.file)) || (plan.file && log.rotate_bytes > 0) || plan.duplicate;
  if (piped) plan.kind = StreamPlan::Kind::piped;
  else if (plan.file) plan.kind = StreamPlan::Kind::direct_file;
  else if (plan.console) plan.kind = StreamPlan::Kind::inherit;
  // Nobody sees it, but if the worker fails, its last words are wanted.
  else plan.kind = stream == StreamId::err ? StreamPlan::Kind::piped : StreamPlan::Kind::discard;

  switch (log.pty) {
    case PtyUse::never: break;
    case PtyUse::automatic:
      plan.pty = piped && plan.console && places.terminal && local_world_size <= most_workers_with_ptys;
      break;
    case PtyUse::always:
      // A single worker that shares ddrun's terminal has one.
      plan.pty = plan.kind != StreamPlan::Kind::discard && !(plan.kind == StreamPlan::Kind::inherit && places.terminal);
      if (plan.pty) plan.kind = StreamPlan::Kind::piped;
      break;
  }
  return plan;
}

}  // namespace ddrun::logs
