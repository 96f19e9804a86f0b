#include <signal.h>

#include <algorithm>

#include "support.hpp"

using namespace ddrun;
using namespace ddrun::cli::test;
using namespace std::chrono_literals;

namespace {

LaunchSpec spec_of(const std::string& option) { return launched({option, "w"}).spec; }

}  // namespace

TEST_CASE("without options everything is at its default") {
  const auto launch = launched({"w"});
  CHECK(launch.warnings.empty());
  CHECK(launch.spec.first().nproc.kind == NprocSpec::Kind::count);
  CHECK(launch.spec.first().nproc.count == 1);
  CHECK(launch.spec.restart.max_restarts == 0);
  CHECK(launch.spec.restart.success_on == CodeSet{0});
  CHECK(launch.spec.stop.grace == 30s);
  CHECK(launch.spec.stop.ending_signals == std::set<int>{SIGTERM, SIGINT, SIGHUP, SIGQUIT});
  CHECK(launch.spec.log.label == Label::automatic);
  CHECK_FALSE(launch.spec.first().streams.redirects.any());
  CHECK_FALSE(launch.spec.timeout.has_value());
  CHECK_FALSE(launch.spec.dry_run);
  CHECK(launch.spec.rendezvous.backend == "static");
  CHECK(launch.spec.rendezvous.id == "none");
  CHECK_FALSE(launch.spec.rendezvous.master_port.has_value());
}

TEST_CASE("options about workers") {
  CHECK(spec_of("--nproc-per-node=auto").first().nproc.kind == NprocSpec::Kind::automatic);
  CHECK(spec_of("--nproc-per-node=cpu").first().nproc.kind == NprocSpec::Kind::cpu);
  CHECK(spec_of("--nproc-per-node=gpu").first().nproc.kind == NprocSpec::Kind::gpu);
  CHECK(spec_of("--nproc-per-node=10000").first().nproc.count == 10'000);
  CHECK(spec_of("--role=trainer").first().role == "trainer");
  CHECK(spec_of("--stdin=all").stdin_.kind == StdinSpec::Kind::all);
  CHECK(spec_of("--stdin=none").stdin_.kind == StdinSpec::Kind::none);
  CHECK(launched({"-n4", "--stdin=3", "w"}).spec.stdin_.rank == 3);
  CHECK(spec_of("--chdir=/x y").first().chdir == "/x y");
  CHECK(spec_of("--seed=18446744073709551615").seed == 18446744073709551615ULL);
  CHECK(spec_of("--bind=cores").first().bind == BindMode::cores);
  CHECK(spec_of("--bind=numa").first().bind == BindMode::numa);
  CHECK(spec_of("--bind=none").first().bind == BindMode::none);
  CHECK(spec_of("--report-bindings").report_bindings);
  CHECK(spec_of("--virtual-local-rank").first().virtual_local_rank);
  CHECK(spec_of("--virtual_local_rank").first().virtual_local_rank);
}

TEST_CASE("options about failure and the end") {
  CHECK(spec_of("--max-restarts=3").restart.max_restarts == 3);
  CHECK(spec_of("--restart-backoff=1.5").restart.backoff == 1500ms);
  CHECK(spec_of("--restart-window=1h").restart.window == 1h);
  CHECK(spec_of("--same-cause=0").restart.same_cause == 0);
  CHECK(spec_of("--no-restart-on=2,64-66").restart.no_restart_on == CodeSet{2, 64, 65, 66});
  CHECK(spec_of("--success-on=0,3,100-102").restart.success_on == CodeSet{0, 3, 100, 101, 102});
  CHECK(spec_of("--timeout=1h30m").timeout == 90min);
  CHECK(spec_of("--shutdown-timeout=2").stop.grace == 2s);
  CHECK(spec_of("--shutdown-timeout=0").stop.grace == 0s);
  CHECK(spec_of("--signals-to-handle=SIGTERM,usr1,2").stop.ending_signals == std::set<int>{SIGTERM, SIGUSR1, SIGINT});
  CHECK(spec_of("--report=r.json").report_files == std::vector<std::string>{"r.json"});
}

TEST_CASE("several reports are written, of the strongest source, each to a file of its own") {
  using Files = std::vector<std::string>;
  const auto files = [](const Args& args, const Args& variables = {}) {
    return launched(args, variables).spec.report_files;
  };
  CHECK(files({"--report=a.xml", "--report", "b.json", "w"}) == Files{"a.xml", "b.json"});
  CHECK(files({"w"}, {"DDRUN_REPORT=a.xml\nb.json"}) == Files{"a.xml", "b.json"});
  CHECK(files({"--report=mine.json", "w"}, {"DDRUN_REPORT=theirs.json"}) == Files{"mine.json"});
  const TemporaryDirectory dir;
  CHECK(files({"--config", dir.file("a.toml", "report = [\"a.xml\", \"b.json\"]\n"), "w"}) == Files{"a.xml", "b.json"});
  CHECK(files({"--config", dir.file("b.toml", "report = \"a.xml\"\n"), "w"}) == Files{"a.xml"});
  const auto forwarded = launched({"--hosts=a", "--report=a.xml", "--report=b.json", "w"}).forwarded_args;
  CHECK(std::ranges::count_if(forwarded, [](const auto& word) { return word.starts_with("--report="); }) == 2);
  CHECK(contains(answered({"config", "show", "--report=a", "--report=b", "w"}), "report = [\"a\", \"b\"]"));
  CHECK(contains(refused({"--report=a", "--report=a", "w"}), "--report: 'a' was given twice; leave one out"));
}

TEST_CASE("options about output") {
  const auto log = [](const std::string& option) { return spec_of(option).log; };
  const auto streams = [](const std::string& option) { return spec_of(option).first().streams; };
  CHECK(streams("--redirects=3").redirects.all_ranks == Streams::both);
  const auto listed = streams("--tee=0:3,12:1,20-22:2").tee;
  CHECK(listed.of(0) == Streams::both);
  CHECK(listed.of(12) == Streams::out);
  CHECK(listed.of(21) == Streams::err);
  CHECK(listed.of(1) == Streams::none);
  CHECK(log("--log-dir=/dev/null").dir == "/dev/null");
  CHECK(log("--log-rotate=10M").rotate_bytes == 10U * 1024 * 1024);
  CHECK(log("--log-rotate=0").rotate_bytes == 0);
  CHECK(log("--label=rank").label == Label::rank);
  CHECK(log("--label=local").label == Label::local);
  CHECK(log("--label=host").label == Label::host);
  CHECK(log("--label=none").label == Label::none);
  CHECK(log("--log-line-prefix-template=[${rank}]").line_prefix_template == "[${rank}]");
  CHECK(log("--timestamps").timestamps);
  CHECK(streams("--local-ranks-filter=0,10-12").local_ranks_filter == std::set<int>{0, 10, 11, 12});
  CHECK_FALSE(streams("--local-ranks-filter=").local_ranks_filter.has_value());
  CHECK(log("--duplicate-stdout-filters=loss,a,,b").duplicate_stdout_filters == Args{"loss", "a,b"});
  CHECK(log("--duplicate-stderr-filters=Error").duplicate_stderr_filters == Args{"Error"});
}

TEST_CASE("options about rendezvous") {
  const auto meeting = [](const std::string& option) { return spec_of(option).rendezvous; };
  CHECK(meeting("--standalone").standalone);
  CHECK(meeting("--nnodes=1:1").max_nodes == 1);
  CHECK(meeting("--nnodes=1").min_nodes == 1);
  CHECK(meeting("--rdzv-backend=c10d").backend == "c10d");
  for (const std::string endpoint : {"localhost", "localhost:0", "10.0.0.1:29400", "[::1]:29400", "::1", "[::1]"}) {
    CHECK(meeting("--rdzv-endpoint=" + endpoint).endpoint == endpoint);
  }
  CHECK(meeting("--rdzv-id=job 7").id == "job 7");
  const std::map<std::string, std::string> conf{{"timeout", "60"}, {"is_host", "1"}};
  CHECK(meeting("--rdzv-conf=timeout = 60, is_host=1").conf == conf);
  CHECK(meeting("--master-addr=127.0.0.1").master_addr == "127.0.0.1");
  CHECK(meeting("--master-port=29500").master_port == 29500);
  CHECK(meeting("--local-addr=127.0.0.1").local_addr == "127.0.0.1");
  CHECK(meeting("--node-rank=0").node_rank == 0);
  CHECK(meeting("--store-max-memory=64M").store_max_memory == 64 * 1024 * 1024);
  CHECK(meeting("--store_max_memory=0").store_max_memory == 0);
  CHECK(meeting("--node-rank=0").store_max_memory == 4ULL * 1024 * 1024 * 1024);
}

TEST_CASE("options that torchrun users bring along") {
  CHECK(spec_of("--event-log-handler=console").event_log_handler == "console");
  CHECK(spec_of("--event-log-handler=dynamic_rendezvous").event_log_handler == "null");
  CHECK(spec_of("--numa-binding=node").first().bind == BindMode::numa);
  CHECK(spec_of("--numa-binding=exclusive").first().bind == BindMode::cores);
  CHECK(launched({"--numa-binding=exclusive", "w"}).warnings.empty());
  CHECK(launched({"--numa-binding=core-complex", "w"}).warnings ==
        Args{"--numa-binding=core-complex is done as --bind=cores"});
  CHECK(launched({"--start-method=fork", "w"}).warnings.size() == 1);
  CHECK(launched({"--start-method=forkserver", "w"}).warnings.size() == 1);
  CHECK(launched({"--start-method=spawn", "w"}).warnings.empty());
  CHECK(launched({"--start-method=forkserver", "--preload=torch", "w.py"}).warnings.empty());
  CHECK(launched({"--monitor-interval=5", "w"}).warnings.size() == 1);
  CHECK(launched({"w"}, {"PET_START_METHOD=fork", "PET_MONITOR_INTERVAL=5"}).warnings.empty());
}

TEST_CASE("modules to preload") {
  CHECK(spec_of("--preload=torch,my_package.data").first().preload == Args{"torch", "my_package.data"});
  CHECK(spec_of("-n2").first().preload.empty());
}

TEST_CASE("colour follows the terminal and NO_COLOR unless given") {
  const Args terminal{"TERM=xterm"};
  CHECK(launched({"w"}, terminal, true).messages.color);
  CHECK_FALSE(launched({"w"}, terminal, false).messages.color);
  CHECK_FALSE(launched({"w"}, {"TERM=dumb"}, true).messages.color);
  CHECK_FALSE(launched({"w"}, {}, true).messages.color);
  CHECK_FALSE(launched({"w"}, {"TERM=xterm", "NO_COLOR=1"}, true).messages.color);
  CHECK(launched({"w"}, {"TERM=xterm", "NO_COLOR="}, true).messages.color);
  CHECK(launched({"--color=always", "w"}, {"NO_COLOR=1"}, false).messages.color);
  CHECK_FALSE(launched({"--color=never", "w"}, terminal, true).messages.color);
}

TEST_CASE("an empty option counts as not given") {
  const LaunchSpec standard = launched({"w"}).spec;
  const Args variables{"PET_LOG_DIR=logs", "PET_MASTER_ADDR=10.0.0.1", "PET_LOCAL_ADDR=10.0.0.2", "PET_RDZV_ID=7"};
  const auto launch = launched({"--log-dir=", "--master-addr=", "--local-addr", "", "--rdzv-id=", "w"}, variables);
  CHECK(launch.spec.log.dir == standard.log.dir);
  CHECK(launch.spec.rendezvous.master_addr == standard.rendezvous.master_addr);
  CHECK(launch.spec.rendezvous.local_addr == standard.rendezvous.local_addr);
  CHECK(launch.spec.rendezvous.id.empty());  // a random one
  // Otherwise a scheduler's values would be ignored.
  CHECK(launch.given.empty());
  CHECK(launched({"--label=host", "--log-line-prefix-template=", "w"}).spec.log.label == Label::host);
}

TEST_CASE("role and signals may be empty") {
  CHECK(launched({"--role=", "w"}).spec.first().role.empty());
  CHECK(launched({"--signals-to-handle=", "w"}).spec.stop.ending_signals.empty());
}

TEST_CASE("whole numbers are parsed as by Python") {
  CHECK(launched({"--nproc-per-node= 2", "w"}).spec.first().nproc.count == 2);
  CHECK(launched({"--nproc-per-node=+2\n", "w"}).spec.first().nproc.count == 2);
  CHECK(launched({"--nproc-per-node=1_0", "w"}).spec.first().nproc.count == 10);
  CHECK(launched({"--max-restarts=+1_000", "w"}).spec.restart.max_restarts == 1000);
  CHECK(launched({"--nnodes= 1 : +1", "w"}).spec.rendezvous.max_nodes == 1);
  CHECK(launched({"--shutdown-timeout= 5", "w"}).spec.stop.grace == Milliseconds(5000));
  CHECK(launched({"--master-port=007", "w"}).spec.rendezvous.master_port == 7);
}
