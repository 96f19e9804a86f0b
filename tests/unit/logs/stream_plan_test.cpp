#include "log_files.hpp"

#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::logs;
using Kind = StreamPlan::Kind;

namespace {

StreamPlan out_of(const LogSpec& log, int workers, int local_rank = 0, bool files = true) {
  return plan_stream(log, StreamId::out, local_rank, workers, {.files = files});
}

}  // namespace

TEST_CASE("one worker inherits the terminal unless an option needs a pipe") {
  LogSpec log;
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
  LogSpec log;
  log.redirects.by_local_rank[12] = Streams::out;
  CHECK(out_of(log, 16, 12).kind == Kind::direct_file);
  CHECK_FALSE(out_of(log, 16, 12).console);
  CHECK(plan_stream(log, StreamId::err, 12, 16, {}).kind == Kind::piped);
  CHECK_FALSE(plan_stream(log, StreamId::err, 12, 16, {}).file);
  CHECK_FALSE(out_of(log, 16, 1).file);
  log.tee.by_local_rank[12] = Streams::both;
  CHECK(out_of(log, 16, 12).kind == Kind::piped);
  CHECK(out_of(log, 16, 12).file);
  CHECK(out_of(log, 16, 12).console);
}

TEST_CASE("rotation goes through ddrun") {
  LogSpec log;
  log.redirects.all_ranks = Streams::both;
  log.rotate_bytes = 1000;
  CHECK(out_of(log, 1).kind == Kind::piped);
  CHECK_FALSE(out_of(log, 1).console);
}

TEST_CASE("local ranks that are filtered out go to files but are not shown") {
  LogSpec log;
  log.local_ranks_filter = std::set<int>{1};
  CHECK(out_of(log, 4, 0).kind == Kind::discard);
  CHECK(out_of(log, 4, 1).kind == Kind::piped);
  log.tee.all_ranks = Streams::out;
  CHECK(out_of(log, 4, 0).kind == Kind::direct_file);
  CHECK(out_of(log, 4, 1).console);
}

TEST_CASE("a stderr that is not shown is read all the same") {
  LogSpec log;
  log.local_ranks_filter = std::set<int>{1};
  StreamPlan hidden = plan_stream(log, StreamId::err, 0, 4, {});
  CHECK(hidden.kind == Kind::piped);
  CHECK_FALSE((hidden.console || hidden.file || hidden.duplicate));
  log = {};
  log.redirects.all_ranks = Streams::both;
  hidden = plan_stream(log, StreamId::err, 0, 1, {.files = false});
  CHECK(hidden.kind == Kind::piped);
  CHECK_FALSE((hidden.console || hidden.file || hidden.duplicate));
}

TEST_CASE("without log files a redirected stream is dropped and a tee is shown") {
  LogSpec log;
  log.redirects.all_ranks = Streams::out;
  CHECK(out_of(log, 4, 0, false).kind == Kind::discard);
  log.tee.all_ranks = Streams::out;
  CHECK(out_of(log, 4, 0, false).kind == Kind::piped);
  CHECK_FALSE(out_of(log, 4, 0, false).file);
  log.duplicate_stdout_filters = {"loss"};
  CHECK_FALSE(out_of(log, 4, 0, false).duplicate);
}

TEST_CASE("a duplicate filter reads the stream whatever its other destinations") {
  LogSpec log;
  log.duplicate_stdout_filters = {"loss"};
  CHECK(out_of(log, 1).kind == Kind::piped);
  CHECK(plan_stream(log, StreamId::err, 0, 1, {}).kind == Kind::inherit);
  log.redirects.all_ranks = Streams::out;
  CHECK(out_of(log, 1).kind == Kind::piped);
  CHECK(out_of(log, 1).duplicate);
  CHECK_FALSE(out_of(log, 1).console);
}

TEST_CASE("workers get pseudo-terminals where their console is a terminal") {
  const StreamTargets on_terminal{.files = true, .terminal = true};
  const auto plan = [&](const LogSpec& log, int workers, const StreamTargets& targets) {
    return plan_stream(log, StreamId::out, 0, workers, targets);
  };
  LogSpec log;
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
  LogSpec log;
  log.pty = PtyUse::always;
  CHECK(out_of(log, 1).pty);
  CHECK(out_of(log, 1).kind == Kind::piped);
  CHECK(out_of(log, 1000).pty);
  CHECK(plan_stream(log, StreamId::out, 0, 1, {.files = true, .terminal = true}).kind == Kind::inherit);
  log.redirects.all_ranks = Streams::both;
  CHECK(out_of(log, 2).pty);
  CHECK(out_of(log, 2).file);
  CHECK_FALSE(out_of(log, 2).console);
  CHECK(out_of(log, 2, 0, false).kind == Kind::discard);
  CHECK_FALSE(out_of(log, 2, 0, false).pty);
  log = {};
  log.pty = PtyUse::never;
  CHECK_FALSE(plan_stream(log, StreamId::out, 0, 2, {.files = true, .terminal = true}).pty);
}
