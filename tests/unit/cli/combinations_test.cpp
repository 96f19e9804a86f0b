#include "support.hpp"

using namespace ddrun;
using namespace ddrun::cli::test;

TEST_CASE("options that contradict each other are refused") {
  CHECK(contains(refused({"--no-python", "-m", "x"}), "--no-python and --module exclude each other (command line)"));
  CHECK(contains(refused({"-v", "-q", "x"}), "--verbose and --quiet exclude each other"));
  CHECK(contains(refused({"--label=host", "--log-line-prefix-template=x", "x"}),
                 "--label and --log-line-prefix-template exclude each other"));
  CHECK(contains(refused({"--bind=cores", "--numa-binding=node", "x"}), "--bind and --numa-binding exclude"));
  CHECK(contains(refused({"x"}, {"PET_MODULE=1", "DDRUN_NO_PYTHON=1"}),
                 "(variable DDRUN_NO_PYTHON and variable PET_MODULE)"));
  CHECK(contains(refused({"--success-on=0,3", "--no-restart-on=2-4", "x"}), "exit code 3 is in --success-on and in"));
  CHECK(refused({"-n2", "--stdin=2", "x"}) == "--stdin=2: there is no such rank, the highest is 1");
}

TEST_CASE("of two exclusive options the one with higher precedence stays") {
  CHECK(launched({"-m", "x"}, {"PET_NO_PYTHON=1"}).spec.first().kind == ProgramKind::python_module);
  CHECK(launched({"--no-python", "x"}, {"PET_MODULE=1"}).spec.first().kind == ProgramKind::executable);
  CHECK(launched({"-q", "x"}, {"DDRUN_VERBOSE=2"}).messages.shown == Level::warning);
  const auto log = launched({"--label=host", "x"}, {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=t"}).spec.log;
  CHECK(log.label == Label::host);
  CHECK(log.line_prefix_template.empty());
}

TEST_CASE("host commands are taken unchanged") {
  const auto commands =
      launched({"--before=a 'b' && c", "--before-each=attempt", "x"}, {"DDRUN_AFTER=d"}).spec.commands;
  CHECK(commands.before == "a 'b' && c");
  CHECK(commands.before_each == BeforeEach::attempt);
  CHECK(commands.after == "d");
  CHECK(launched({"--before=", "x"}).spec.commands.before.empty());
  CHECK(contains(refused({"--before=a", "--before-each=round", "x"}), "job, attempt"));
}

TEST_CASE("a flag that is switched off excludes nothing") {
  CHECK(launched({"-m", "--no-python=0", "x"}).spec.first().kind == ProgramKind::python_module);
  CHECK(launched({"-v", "--quiet=0", "x"}).messages.shown == Level::info);
}

TEST_CASE("an option without effect causes one warning") {
  const auto warnings = [](Args args) {
    args.emplace_back("x");
    return launched(args).warnings;
  };
  CHECK(warnings({"--restart-backoff=2"}) == Args{"--restart-backoff has no effect without --max-restarts"});
  CHECK(warnings({"--before-each=attempt"}) == Args{"--before-each has no effect without --before"});
  CHECK(warnings({"--before=a", "--before-each=attempt"}).empty());
  CHECK(warnings({"--restart-backoff=2", "--max-restarts=1"}).empty());
  CHECK(warnings({"--duplicate-stdout-filters=a", "--log-dir=/dev/null"}) ==
        Args{"--duplicate-stdout-filters has no effect with --log-dir=/dev/null"});
  CHECK(warnings({"--duplicate-stdout-filters=a"}).empty());
  CHECK(warnings({"-n2", "--tee=0:1,2:1"}) == Args{"--tee names local rank 2, but there are only 0 to 1"});
  CHECK(warnings({"--local-ranks-filter=1"}) ==
        Args{"--local-ranks-filter names local rank 1, but there is only local rank 0"});
  CHECK(warnings({"-n", "gpu", "--tee=0:1,200:1"}).empty());
  CHECK(warnings({"--standalone", "--rdzv-id=7"}) == Args{"--standalone replaces --rdzv-id"});
  CHECK(warnings({"--node-rank=1"}) == Args{"--node-rank=1 is ignored: with one machine its rank is 0"});
  CHECK(warnings({"--rdzv-conf=last_call_timout=3"}) ==
        Args{"--rdzv-conf: ddrun knows no key 'last_call_timout'; did you mean 'last_call_timeout'?"});
  CHECK(warnings({"--run-path", "-m"}) == Args{"--run-path wins over --module"});
}

TEST_CASE("This machine alone and several machines contradict each other") {
  CHECK(refused({"--standalone", "--nnodes=2", "w"}) ==
        "--standalone is for this machine alone, but --nnodes wants 2; leave one of them out");
  CHECK(refused({"--nnodes=2:4", "--standalone", "w"}) ==
        "--standalone is for this machine alone, but --nnodes wants 2; leave one of them out");
  // One of them, or different sources, is fine.
  CHECK_FALSE(launched({"--standalone", "--nnodes=1:4", "w"}).spec.rendezvous.several_machines());
  CHECK_FALSE(launched({"--standalone", "w"}, {"PET_NNODES=2"}).spec.rendezvous.several_machines());
}

TEST_CASE("A secret and no secret contradict each other") {
  CHECK(
      contains(refused({"--nnodes=2", "--insecure", "--secret-file=f", "w"}), "--secret-file and --insecure exclude"));
  const auto meeting = [](const Args& args, const Args& variables) {
    return launched(args, variables).spec.rendezvous;
  };
  CHECK_FALSE(meeting({"--insecure", "w"}, {"DDRUN_SECRET_FILE=f"}).secret_file);
  CHECK_FALSE(meeting({"--secret-file=f", "w"}, {"DDRUN_INSECURE=1"}).insecure);
  CHECK(meeting({"--secret-file=f", "--insecure=0", "w"}, {}).secret_file == "f");
}

TEST_CASE("torchrun's keys of --rdzv-conf have torchrun's meaning") {
  const auto meeting = [](Args args) {
    args.insert(args.begin(), "--nnodes=2");
    args.emplace_back("x");
    return launched(args).spec.rendezvous;
  };
  CHECK(meeting({"--rdzv-conf=timeout=7,join_timeout=8"}).join_timeout == Milliseconds{7'000});
  CHECK(meeting({"--rdzv-backend=c10d", "--rdzv-conf=timeout=7,join_timeout=8"}).join_timeout == Milliseconds{8'000});
  CHECK(meeting({"--rdzv-conf=timeout=7", "--join-timeout=9"}).join_timeout == Milliseconds{9'000});
  const auto all =
      meeting({"--rdzv-conf=last_call_timeout=3,keep_alive_interval=2,keep_alive_max_attempt=5,is_host=no"});
  CHECK(all.last_call == Milliseconds{3'000});
  CHECK(all.heartbeat_interval == Milliseconds{2'000});
  CHECK(all.heartbeat_misses == 5);
  CHECK(all.is_host == false);
  CHECK(meeting({"--rdzv-conf=is_host=True"}).is_host == true);
  CHECK(meeting({"--rdzv-conf=rank=1"}).node_rank == 1);
  CHECK(meeting({"--rdzv-conf=rank=1", "--node-rank=0"}).node_rank == 0);
  CHECK_FALSE(meeting({}).node_rank);
  CHECK(
      contains(refused({"--nnodes=2", "--rdzv-conf=is_host=maybe", "x"}), "is_host=maybe: 'maybe' is neither 0 nor 1"));
  CHECK(contains(refused({"--nnodes=2", "--rdzv-conf=timeout=soon", "x"}), "--rdzv-conf: timeout=soon: "));
  CHECK(contains(refused({"--nnodes=2", "--node-rank=2", "x"}), "node ranks are 0 to 1"));
}

TEST_CASE("a rendezvous file is ignored on one machine and rejected for several") {
  const Args file{"--rdzv-backend=c10d", "--rdzv-conf=store_type=file", "--rdzv-endpoint=/tmp/meet", "--rdzv-id=7"};
  const auto with = [&](Args more) {
    more.insert(more.end(), file.begin(), file.end());
    more.emplace_back("w");
    return more;
  };
  const auto launch = launched(with({}));
  CHECK(launch.spec.rendezvous.endpoint.empty());
  CHECK(launch.spec.rendezvous.id == "7");
  CHECK(launch.warnings.empty());
  CHECK(refused(with({"--nnodes=1:2"})) ==
        "--rdzv-conf: store_type=file: several machines meet at a port of one of them, not in a file; write "
        "--rdzv-endpoint=HOST:PORT with its name or address, and leave out store_type");
  CHECK(refused({"--rdzv-backend=c10d", "--rdzv-endpoint=/tmp/meet", "w"}) ==
        "--rdzv-endpoint=/tmp/meet: '/tmp/meet' is not HOST or HOST:PORT with a port from 0 to 65535");
}

TEST_CASE("a node rank is a wish but with the static rendezvous") {
  const Args several{"--nnodes=2", "--rdzv-endpoint=h", "w"};
  const auto is_wish = [&](Args args, const Args& variables = {}) {
    args.insert(args.end(), several.begin(), several.end());
    return launched(args, variables).spec.rendezvous.node_rank_is_wish;
  };
  CHECK(is_wish({"--node-rank=0", "--rdzv-backend=c10d"}));
  CHECK(is_wish({"--rdzv-backend=c10d"}, {"PET_NODE_RANK=0"}));
  CHECK(is_wish({"--node-rank=0", "--rdzv-backend=etcd", "--rdzv-id=a"}));
  CHECK_FALSE(is_wish({"--node-rank=0"}));
  CHECK_FALSE(is_wish({"--node-rank=0", "--rdzv-backend=static"}));
  CHECK_FALSE(is_wish({"--rdzv-backend=c10d"}));
  const auto beyond = launched({"--rdzv-backend=c10d", "--rdzv-endpoint=h", "--nnodes=1:2", "--node-rank=2", "w"});
  CHECK_FALSE(beyond.spec.rendezvous.node_rank);
  CHECK(beyond.warnings == Args{"--node-rank=2 with --nnodes=2: node ranks are 0 to 1; it is ignored, and this machine "
                                "gets a free one"});
}
