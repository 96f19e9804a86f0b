#include "log_files.hpp"

#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::logs;
using Kind = StreamPlan::Kind;

namespace {

struct Log : LogSpec, StreamChoice {};

StreamPlan plan_of(const Log& log, StreamId id, int local_rank, int workers, StreamTargets targets) {
  OutputOptions options;
  options.log = log;
  options.programs[0].streams = log;
  options.places.clear();
  for (int i = 0; i < workers; ++i) options.places.push_back({0, i, i});
  return plan_stream(options, id, local_rank, targets);
}

StreamPlan out_of(const Log& log, int workers, int local_rank = 0, bool files = true) {
  return plan_of(log, StreamId::out, local_rank, workers, {.files = files});
}

}  // namespace

TEST_CASE("one worker inherits the terminal unless an option needs a pipe") {
  Log log;
  CHECK(out_of(log, 1).kind == Kind::inherit);
  CHECK(out_of(log, 1).console);
  CHECK(out_of(log, 2).kind == Kind::piped);
  log.label = Label::none;
  CHECK(out_of(log, 1).kind == Kind::inherit);
  CHECK(out_of(log, 2).kind == Kind::piped);
  log.label = Label::rank;
  CHECK(out_of(log, 1).kind == Kind::piped);
  log = {};
  log.timestamps = true;
  CHECK(out_of(log, 1).kind == Kind::piped);
  log = {};
  log.line_prefix_template = "x";
  CHECK(out_of(log, 1).kind == Kind::piped);
}

TEST_CASE("redirect and tee are per stream and per local rank") {
  Log log;
  log.redirects.by_local_rank[12] = Streams::out;
  CHECK(out_of(log, 16, 12).kind == Kind::direct_file);
  CHECK_FALSE(out_of(log, 16, 12).console);
  CHECK(plan_of(log, StreamId::err, 12, 16, {}).kind == Kind::piped);
  CHECK_FALSE(plan_of(log, StreamId::err, 12, 16, {}).file);
  CHECK_FALSE(out_of(log, 16, 1).file);
  log.tee.by_local_rank[12] = Streams::both;
  CHECK(out_of(log, 16, 12).kind == Kind::piped);
  CHECK(out_of(log, 16, 12).file);
  CHECK(out_of(log, 16, 12).console);
}

TEST_CASE("rotation goes through ddrun") {
  Log log;
  log.redirects.all_ranks = Streams::both;
  log.rotate_bytes = 1000;
  CHECK(out_of(log, 1).kind == Kind::piped);
  CHECK_FALSE(out_of(log, 1).console);
}

TEST_CASE("local ranks that are filtered out go to files but are not shown") {
  Log log;
  log.local_ranks_filter = std::set<int>{1};
  CHECK(out_of(log, 4, 0).kind == Kind::discard);
  CHECK(out_of(log, 4, 1).kind == Kind::piped);
  log.tee.all_ranks = Streams::out;
  CHECK(out_of(log, 4, 0).kind == Kind::direct_file);
  CHECK(out_of(log, 4, 1).console);
}

TEST_CASE("a stderr that is not shown is read all the same") {
  Log log;
  log.local_ranks_filter = std::set<int>{1};
  StreamPlan hidden = plan_of(log, StreamId::err, 0, 4, {});
  CHECK(hidden.kind == Kind::piped);
  CHECK_FALSE((hidden.console || hidden.file || hidden.duplicate));
  log = {};
  log.redirects.all_ranks = Streams::both;
  hidden = plan_of(log, StreamId::err, 0, 1, {.files = false});
  CHECK(hidden.kind == Kind::piped);
  CHECK_FALSE((hidden.console || hidden.file || hidden.duplicate));
}

TEST_CASE("without log files a redirected stream is dropped and a tee is shown") {
  Log log;
  log.redirects.all_ranks = Streams::out;
  CHECK(out_of(log, 4, 0, false).kind == Kind::discard);
  log.tee.all_ranks = Streams::out;
  CHECK(out_of(log, 4, 0, false).kind == Kind::piped);
  CHECK_FALSE(out_of(log, 4, 0, false).file);
  log.duplicate_stdout_filters = {"loss"};
  CHECK_FALSE(out_of(log, 4, 0, false).duplicate);
}

TEST_CASE("a duplicate filter reads the stream whatever its other destinations") {
  Log log;
  log.duplicate_stdout_filters = {"loss"};
  CHECK(out_of(log, 1).kind == Kind::piped);
  CHECK(plan_of(log, StreamId::err, 0, 1, {}).kind == Kind::inherit);
  log.redirects.all_ranks = Streams::out;
  CHECK(out_of(log, 1).kind == Kind::piped);
  CHECK(out_of(log, 1).duplicate);
  CHECK_FALSE(out_of(log, 1).console);
}

TEST_CASE("workers get pseudo-terminals where their console is a terminal") {
  const StreamTargets on_terminal{.files = true, .terminal = true};
  const auto plan = [&](const Log& log, int workers, const StreamTargets& targets) {
    return plan_of(log, StreamId::out, 0, workers, targets);
  };
  Log log;
  CHECK(plan(log, 2, on_terminal).pty);
  CHECK_FALSE(plan(log, 2, {}).pty);
  CHECK_FALSE(plan(log, 1, on_terminal).pty);  // it inherits the real one
  CHECK(plan(log, max_workers_with_ptys, on_terminal).pty);
  CHECK_FALSE(plan(log, max_workers_with_ptys + 1, on_terminal).pty);
  log.tee.all_ranks = Streams::both;
  CHECK(plan(log, 1, on_terminal).pty);
  log = {};
  log.redirects.all_ranks = Streams::both;
  CHECK(plan(log, 2, on_terminal).kind == Kind::direct_file);
  CHECK_FALSE(plan(log, 2, on_terminal).pty);
  log.duplicate_stdout_filters = {"x"};
  CHECK(plan(log, 2, on_terminal).kind == Kind::piped);
  CHECK_FALSE(plan(log, 2, on_terminal).pty);  // it is not shown
}

TEST_CASE("pseudo-terminals can be forced and switched off") {
  Log log;
  log.pty = PtyUse::always;
  CHECK(out_of(log, 1).pty);
  CHECK(out_of(log, 1).kind == Kind::piped);
  CHECK(out_of(log, 1000).pty);
  CHECK(plan_of(log, StreamId::out, 0, 1, {.files = true, .terminal = true}).kind == Kind::inherit);
  log.redirects.all_ranks = Streams::both;
  CHECK(out_of(log, 2).pty);
  CHECK(out_of(log, 2).file);
  CHECK_FALSE(out_of(log, 2).console);
  CHECK(out_of(log, 2, 0, false).kind == Kind::discard);
  CHECK_FALSE(out_of(log, 2, 0, false).pty);
  log = {};
  log.pty = PtyUse::never;
  CHECK_FALSE(plan_of(log, StreamId::out, 0, 2, {.files = true, .terminal = true}).pty);
}
