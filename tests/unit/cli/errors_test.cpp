#include "support.hpp"

using namespace ddrun::cli::test;

TEST_CASE("a mistyped option names the nearest one") {
  CHECK(refused({"--nproc", "4", "w"}) == "unknown option '--nproc'; did you mean '--nproc-per-node'?");
  CHECK(refused({"--nproc_per_nood=4", "w"}) == "unknown option '--nproc_per_nood'; did you mean '--nproc-per-node'?");
  CHECK(refused({"--max-restarst=4", "w"}) == "unknown option '--max-restarst'; did you mean '--max-restarts'?");
  CHECK(refused({"-standalone", "w"}) == "unknown option '-standalone'; did you mean '--standalone'?");
  CHECK(refused({"-nproc_per_node=4", "w"}) == "unknown option '-nproc_per_node'; did you mean '--nproc-per-node'?");
  CHECK(refused({"-R", "w"}) == "unknown option '-R'; did you mean '-r'?");
  CHECK(refused({"-y", "w"}) == "unknown option '-y' (see 'ddrun --help')");
  CHECK(refused({"--completely-different", "w"}) == "unknown option '--completely-different' (see 'ddrun --help')");
}

TEST_CASE("a start that only one of torchrun's options has is that option, and no other start is one") {
  const std::vector<std::pair<Args, Args>> taken{
      {{"--nnode", "2:3"}, {"--nnodes=2:3"}},
      {{"--nnode=2:3"}, {"--nnodes=2:3"}},
      {{"--max-restart=3"}, {"--max-restarts=3"}},
      {{"--max_restart", "3"}, {"--max-restarts=3"}},
      {{"--redirect=3"}, {"--redirects=3"}},
      {{"--red", "0:3"}, {"--redirects=0:3"}},
      {{"--nproc_per=4"}, {"--nproc-per-node=4"}},
      {{"--nproc-", "4"}, {"--nproc-per-node=4"}},
      {{"--stand"}, {"--standalone"}},
      {{"--stand=1"}, {"--standalone"}},
      {{"--mod"}, {"--module"}},
      {{"--logs-"}, {"--logs-specs=default"}},
      {{"--numa-b=node"}, {"--numa-binding=node"}},
  };
  for (auto [typed, full] : taken) {
    CAPTURE(typed);
    if (typed.front() == "--logs-") typed.emplace_back("default");
    for (Args* args : {&typed, &full}) args->insert(args->begin(), {"config", "show"});
    CHECK(answered(typed) == answered(full));
  }
  CHECK(contains(answered({"--hel"}), "Usage: ddrun"));
  CHECK(refused({"--nproc", "4", "w"}) == "unknown option '--nproc'; did you mean '--nproc-per-node'?");
  CHECK(refused({"--rdzv", "w"}) ==
        "unknown option '--rdzv'; did you mean '--rdzv-backend', '--rdzv-endpoint', '--rdzv-id', '--rdzv-conf'?");
  CHECK(contains(refused({"--log-dir_", "w"}), "unknown option '--log-dir_'"));
  CHECK(contains(refused({"--nproc-per_n=4", "w"}), "unknown option '--nproc-per_n'"));
  CHECK(contains(refused({"--verb", "w"}), "did you mean '--verbose'?"));
  CHECK(contains(refused({"--timeou=3", "w"}), "did you mean '--timeout'?"));
  CHECK(contains(refused({"--host=a", "w"}), "(of mpirun); in ddrun: --hosts="));
  // In torchrun --local-ranks-filter, which would hide the other ranks.
  CHECK(contains(refused({"--local_rank=0", "w"}), "(of torch.distributed.launch)"));
  CHECK(refused({"-n", "--", "--nnode"}) == "-n needs a value (N); if it is to be '--', write --nproc-per-node=--");
  CHECK(refused({"--nnode"}) == "--nnodes needs a value (N)");
}

TEST_CASE("a forgotten value is noticed") {
  CHECK(refused({"-n"}) == "-n needs a value (N)");
  CHECK(refused({"--log-dir"}) == "--log-dir needs a value (DIR)");
  CHECK(refused({"--log-dir", "--tee=3", "w"}) ==
        "--log-dir needs a value (DIR); if it is to be '--tee=3', write --log-dir=--tee=3");
  CHECK(refused({"-n", "-m", "w"}) == "-n needs a value (N); if it is to be '-m', write --nproc-per-node=-m");
  CHECK(refused({"-n", "--", "w"}) == "-n needs a value (N); if it is to be '--', write --nproc-per-node=--");
  CHECK(refused({"--help=yes"}) == "--help takes no value");
}

TEST_CASE("a value that is not allowed is named with its option and what is allowed") {
  struct Case {
    std::string option;
    std::string message;
  };
  const std::vector<Case> cases{
      {"--nproc-per-node=0", "'0' is not a number from 1 to 100000, auto, cpu or gpu"},
      {"--nproc-per-node=2x", "'2x' is not a number from 1 to 100000, auto, cpu or gpu"},
      {"--nproc-per-node=0x10", "'0x10' is not a number from 1 to 100000, auto, cpu or gpu"},
      {"--nproc-per-node=1__0", "'1__0' is not a number from 1 to 100000, auto, cpu or gpu"},
      {"--nproc-per-node=+-2", "'+-2' is not a number from 1 to 100000, auto, cpu or gpu"},
      {"--nproc-per-node=2 2", "'2 2' is not a number from 1 to 100000, auto, cpu or gpu"},
      {"--nproc-per-node=_2", "'_2' is not a number from 1 to 100000, auto, cpu or gpu"},
      {"--nproc-per-node=", "'' is not a number from 1 to 100000, auto, cpu or gpu"},
      {"--nproc-per-node=xpu", "only PyTorch's own libraries count devices of the kind xpu; give their number"},
      {"--nproc-per-node=99999999999999999999",
       "'99999999999999999999' is not a number from 1 to 100000, auto, cpu or gpu"},
      {"--max-restarts=-1", "'-1' is not a whole number from 0 to 1000000"},
      {"--max-restarts=1.5", "'1.5' is not a whole number from 0 to 1000000"},
      {"--redirects=4", "'4' is neither 0, 1, 2 or 3"},
      {"--redirects=0:4", "'0:4' is neither 0, 1, 2 or 3"},
      {"--redirects=3,0:1", "'3,0:1' is neither 0, 1, 2 or 3"},
      {"--tee=0:1,", "'0:1,' is neither 0, 1, 2 or 3"},
      {"--tee=", "'' is neither 0, 1, 2 or 3"},
      {"--local-ranks-filter=0,x", "'x' is not a local rank from 0 to 99999; give a list such as 1,3,8-15"},
      {"--local-ranks-filter=-1", "'-1' is not a local rank from 0 to 99999"},
      {"--success-on=256", "'256' is not an exit code from 0 to 255"},
      {"--success-on=5-3", "'5-3' is not an exit code from 0 to 255"},
      {"--success-on=", "'' is not an exit code from 0 to 255"},
      {"--no-restart-on=1,,2", "'' is not an exit code from 0 to 255"},
      {"--restart-window=0", "must be longer than 0"},
      {"--timeout=soon", "'soon' is not a time: give seconds (30, 1.5) or a unit"},
      {"--timeout=100000000000", "'100000000000' is more than ten years"},
      {"--shutdown-timeout=-1", "'-1' is not a time"},
      {"--signals-to-handle=SIGTERM,SIGUSR", "'SIGUSR' is not a signal; give names such as SIGTERM,SIGUSR1"},
      {"--signals-to-handle=KILL", "SIGKILL cannot be handled by a launcher"},
      {"--signals-to-handle=TERM,", "'' is not a signal"},
      {"--stdin=some", "'some' is neither a rank (0, 1, ...) nor all or none"},
      {"--label=ranks", "'ranks' is not one of auto, rank, local, host, none, torchrun; did you mean 'rank'?"},
      {"--bind=socket", "'socket' is not one of none, cores, numa"},
      {"--color=on", "'on' is not one of auto, always, never"},
      {"--env=A", "'A' is not NAME=VALUE"},
      {"--env==A", "'=A' is not NAME=VALUE"},
      {"--seed=-1", "'-1' is not a whole number from 0 to 18446744073709551615"},
      {"--log-rotate=10", "'10' is too small: give 0 (never) or at least 1K"},
      {"--log-rotate=big", "'big' is not a size: give bytes (4096) or a unit (64K, 10M, 1G)"},
      {"--chdir=", "must not be empty"},

      {"--nnodes=2:1", "'2:1' is neither N nor MIN:MAX with 0 < MIN <= MAX"},
      {"--nnodes=0", "'0' is neither N nor MIN:MAX with 0 < MIN <= MAX"},
      {"--nnodes=1:2:3", "'1:2:3' is neither N nor MIN:MAX with 0 < MIN <= MAX"},
      {"--rdzv-backend=zookeeper", "'zookeeper' is not one of static, c10d, etcd, etcd-v2"},
      {"--rdzv-endpoint=h:2379,h:70000", "'h:70000' is not HOST or HOST:PORT with a port from 0 to 65535"},
      {"--lease-ttl=1", "'1' is not a whole number of seconds from 2 on"},
      {"--lease-ttl=2.5", "'2.5' is not a whole number of seconds from 2 on"},
      {"--rdzv-endpoint=h:70000", "'h:70000' is not HOST or HOST:PORT with a port from 0 to 65535"},
      {"--rdzv-endpoint=-s:29400", "'-s' is not a host: a host's name does not begin with '-'"},
      {"--master-addr=--help", "'--help' is not a host: a host's name does not begin with '-'"},
      {"--rdzv-endpoint=h:", "'h:' is not HOST or HOST:PORT"},
      {"--rdzv-endpoint=[::1", "'[::1' is not HOST or HOST:PORT"},
      {"--rdzv-conf=timeout", "'timeout' is not KEY=VALUE"},
      {"--master-port=65536", "'65536' is not a whole number from 0 to 65535"},
      {"--monitor-interval=0", "'0' is not a number above 0"},
      {"--monitor-interval=nan", "'nan' is not a number above 0"},
      {"--preload=torch,", "'' is no name of a Python module; give names such as torch,mypackage.data"},
      {"--start-method=vfork", "'vfork' is not one of exec, spawn, fork, forkserver"},
      {"--numa-binding=cores", "'cores' is not one of node, socket, exclusive, core-complex"},
      {"--event-log-handler=file", "'file' is not one of null, console"},
      {"--logs-specs=mine", "'mine' would be a Python plug-in, which ddrun cannot load"},
  };
  for (const auto& [option, message] : cases) {
    const std::string line = refused({option, "w"});
    INFO(line);
    CHECK(line.substr(0, option.size() + 2) == option + ": ");
    CHECK(contains(line, message));
  }
}

TEST_CASE("a host of digits and dots or with a colon must be a valid address") {
  CHECK(refused({"--local-addr=300.1.1.1", "w"}) == "--local-addr=300.1.1.1: '300.1.1.1' is not an IP address");
  CHECK(refused({"--master-addr=10.0.0", "w"}) == "--master-addr=10.0.0: '10.0.0' is not an IP address");
  CHECK(refused({"--master-addr=fd00:1", "w"}) == "--master-addr=fd00:1: 'fd00:1' is not an IP address");
  CHECK(refused({"--rdzv-endpoint=1.2.3:5", "w"}) == "--rdzv-endpoint=1.2.3:5: '1.2.3' is not an IP address");
  CHECK(refused({"--rdzv-endpoint=[::zz]:5", "w"}) == "--rdzv-endpoint=[::zz]:5: '::zz' is not an IP address");
  CHECK(launched({"--local-addr=node7.ib", "w"}).spec.rendezvous.local_addr == "node7.ib");
  CHECK(launched({"--local-addr=fe80::1%eth0", "w"}).spec.rendezvous.local_addr == "fe80::1%eth0");
  CHECK(launched({"--rdzv-endpoint=1st.example:5", "w"}).spec.rendezvous.endpoint == "1st.example:5");
}

TEST_CASE("several endpoints are the members of an etcd, and nothing else") {
  CHECK(refused({"--nnodes=2:4", "--rdzv-endpoint=a:1,b:1", "w"}) ==
        "--rdzv-endpoint=a:1,b:1: only etcd has several endpoints; name one machine, or add --rdzv-backend=etcd (these "
        "are its members) or --rdzv-lease=COMMAND (a program says which machine runs the coordinator)");
  CHECK(contains(refused({"--rdzv-backend=c10d", "--rdzv-endpoint=a,b,c", "w"}), "--rdzv-backend=etcd"));
  CHECK(launched({"--nnodes=2:4", "--rdzv-backend=etcd", "--rdzv-endpoint=a,b,c", "w"}).spec.rendezvous.endpoint ==
        "a,b,c");
  CHECK(launched({"--standalone", "--rdzv-endpoint=a,b,c", "w"}).spec.rendezvous.standalone);
}

TEST_CASE("link-local addresses without an interface are rejected") {
  CHECK(refused({"--nnodes=2", "--local-addr=fe80::1%eth0", "w"}) ==
        "--local-addr=fe80::1%eth0: a link-local address leads nowhere from other machines; give another one of this "
        "machine");
  CHECK(refused({"--nnodes=2", "--rdzv-endpoint=[fe80::1]:5", "w"}) ==
        "--rdzv-endpoint=[fe80::1]:5: a link-local address needs the interface that leads to it: fe80::1%eth0");
  CHECK(refused({"--nnodes=2", "--master-addr=fe80::1", "w"}) ==
        "--master-addr=fe80::1: a link-local address needs the interface that leads to it: fe80::1%eth0");
  CHECK(launched({"--nnodes=2", "--rdzv-endpoint=[fe80::1%eth0]:5", "w"}).spec.rendezvous.endpoint ==
        "[fe80::1%eth0]:5");
  CHECK(launched({"--rdzv-endpoint=[fe80::1]:5", "w"}).spec.rendezvous.endpoint == "[fe80::1]:5");
}

TEST_CASE("a flag takes only a yes or a no") {
  CHECK(refused({"--standalone=maybe", "w"}) == "--standalone: 'maybe' is neither 0 nor 1");
  CHECK(refused({"--standalone=", "w"}) == "--standalone= has no value; give 0 or 1, or leave out the =");
  CHECK(refused({"--verbose=many", "w"}) == "--verbose: 'many' is not a number from 0 to 9");
}

TEST_CASE("no program is an error that says how to give one") {
  CHECK(contains(refused({}), "no program given: ddrun [options] [--] program [args...] (see 'ddrun -h')"));
  CHECK(contains(refused({"-n", "4"}), "no program given"));
  CHECK(contains(refused({"--"}), "no program given"));
  CHECK(refused({"-n", "2", "--report", "./prog"}) == "no program given: --report took './prog'");
  CHECK(refused({"--hosts", "./prog"}) == "no program given: --hosts took './prog'");
  CHECK(contains(refused({"--report=./prog"}), "no program given: ddrun"));
  CHECK(refused({""}) == "the program's name is empty");
}

TEST_CASE("a control character in an argument does not break the line") {
  CHECK(refused({"--role", "x", "--bad\nline", "w"}) == "unknown option '--bad?line' (see 'ddrun --help')");
}
