"""The table of command lines that ddrun and torchrun must take alike; test_command_lines.py runs it.

In a line and in variables DIR is the run's own folder (work/ in it is the working directory), PORT a free port.
"""

import dataclasses
import shlex


@dataclasses.dataclass(frozen=True)
class Line:
    text: str
    env: dict = dataclasses.field(default_factory=dict)
    do: str = ""  # what scripts/probe.py does besides looking
    stdin: str | None = None  # what a file given as standard input contains; None: /dev/null
    status: int = 0  # with which ddrun ends
    signal: str = ""  # sent to the launcher once its workers are there
    workers: int = 1  # how many that are
    refused: str = ""  # the row that says why ddrun refuses what torchrun takes
    accepted: str = ""  # the row that says why ddrun takes what torchrun refuses
    arguments: tuple | None = None  # instead of the words of `text`, where these cannot be written in a text

    def words(self):
        return shlex.split(self.text) if self.arguments is None else list(self.arguments)

    def has(self, start):
        """Does one of the words begin with this?"""
        return any(word.startswith(start) for word in self.words())

    def name(self):
        before = "".join(f"{name}={shlex.quote(value or '')} " for name, value in self.env.items())
        after = f"  ({self.do})" if self.do else ""
        if self.signal:
            after += f"  (SIG{self.signal})"
        if self.stdin is not None:
            after += "  (with input)"
        return before + self.text + after


LINES = [
    # How many workers
    Line("probe.py"),
    Line("--nproc-per-node=2 probe.py"),
    Line("--nproc_per_node=2 probe.py"),
    Line("--nproc-per-node 2 probe.py"),
    Line("--nproc-per-node=cpu probe.py"),
    Line("--nproc-per-node=auto probe.py"),
    Line("--nproc-per-node=4 probe.py"),
    Line("--nnodes=1 --nproc-per-node=2 probe.py"),
    Line("--nnodes=1:1 probe.py"),

    Line("'--nproc-per-node= 2' --max-restarts=+1_0 '--nnodes= 1 : +1' probe.py"),
    Line("'--shutdown-timeout= +5' '--node-rank= 0' probe.py"),

    # Variables in place of options
    Line("probe.py", env={"PET_NPROC_PER_NODE": "2"}),
    Line("--nproc-per-node=2 probe.py", env={"PET_NPROC_PER_NODE": "3"}),
    Line("probe.py", env={"PET_ROLE": "trainer", "PET_MAX_RESTARTS": "2", "PET_MONITOR_INTERVAL": "0.2"}),
    Line("probe.py", env={"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": "PORT", "PET_NODE_RANK": "0"}),
    Line("probe.py", env={"PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "localhost:0", "PET_RDZV_ID": "job7"}),
    Line("probe.py", env={"PET_STANDALONE": "1", "PET_NNODES": "1"}),
    Line("./probe.sh a", env={"PET_NO_PYTHON": "1"}),
    Line("probe.py", env={"PET_NO_PYTHON": "0", "PET_MODULE": "0"}),
    Line("probe a", env={"PET_MODULE": "1"}),
    Line("DIR/work/probe.py a", env={"PET_RUN_PATH": "1"}),
    Line("probe.py", env={"PET_TEE": "3", "PET_LOG_DIR": "logs", "PET_LOG_LINE_PREFIX_TEMPLATE": "<${rank}> "}),
    Line("probe.py", env={"PET_REDIRECTS": "1", "PET_LOG_DIR": "DIR/logs"}),
    Line("--nproc-per-node=2 probe.py", env={"PET_VIRTUAL_LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "5,6"}),
    Line("probe.py", env={"PET_SIGNALS_TO_HANDLE": "SIGTERM,SIGUSR2", "PET_SHUTDOWN_TIMEOUT": "7"}),
    Line("probe.py", env={"PET_STANDALONE": "yes"}, accepted="pet-values"),
    Line("probe.py", env={"PET_STANDALONE": "perhaps"}, status=2),

    Line("probe.py", env={"PET_NPROC_PER_NODE": "", "PET_STANDALONE": "", "PET_ROLE": "", "PET_MAX_RESTARTS": ""},
         accepted="empty-variables"),
    Line("probe.py", env={"PET_RDZV_ID": "", "PET_LOG_DIR": "", "PET_LOCAL_ADDR": ""}),

    # Where to meet
    Line("--standalone --nproc-per-node=2 probe.py"),
    Line("--standalone --rdzv-backend=static --rdzv-endpoint=localhost:PORT --rdzv-id=mine probe.py"),
    Line("--rdzv-backend=c10d --rdzv-endpoint=localhost:0 --rdzv-id=job42 --nnodes=1 probe.py"),
    Line("--rdzv_backend=c10d --rdzv_endpoint=127.0.0.1:PORT --rdzv_id=job42 --nproc_per_node=2 probe.py"),
    Line("--rdzv-backend=static --rdzv-endpoint=127.0.0.1:PORT --rdzv-id=s1 probe.py"),
    Line("--rdzv-backend c10d --rdzv-endpoint localhost:0 --rdzv-conf join_timeout=60,close_timeout=5,read_timeout=30 "
         "probe.py"),
    Line("--master-port=PORT --rdzv-conf timeout=60 probe.py"),
    Line("--master-port=PORT --rdzv-id=known probe.py"),
    Line("--rdzv-id=known probe.py"),
    Line("--nnodes=1 --node-rank=0 --master-addr=127.0.0.1 --master-port=PORT --nproc-per-node=2 probe.py"),
    Line("--node_rank 0 --master_addr localhost --master_port PORT probe.py"),
    Line("--master-addr=127.0.0.1 probe.py"),
    Line("--rdzv-backend=c10d --rdzv-endpoint=localhost:0 --local-addr=127.0.0.1 probe.py"),
    Line("--standalone --local_addr=127.0.0.1 probe.py"),
    Line("--rdzv-id= probe.py"),
    Line("--rdzv-id= --rdzv-backend=c10d --rdzv-endpoint=localhost:0 --local-addr= probe.py"),
    Line("--rdzv-id= --rdzv-endpoint=127.0.0.1:PORT probe.py"),
    Line("--master-addr= --local-addr= --log-dir= --rdzv-endpoint= --rdzv-conf= probe.py"),
    Line("--master-port=0 probe.py"),
    Line("--rdzv-backend=c10d --rdzv-conf=store_type=file --rdzv-endpoint=DIR/meet --rdzv-id=7 probe.py"),
    Line("probe.py", env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}),
    Line("--master-port=PORT probe.py", env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}),

    # What to start
    Line("-m probe a b"),
    Line("--module package.inner a"),
    Line("--no-python ./probe.sh a 'b c'"),
    Line("--no_python --nproc-per-node=2 sh -c 'echo probe $RANK of $WORLD_SIZE'"),
    Line("./probe.sh a", accepted="not-python"),
    Line("--run-path DIR/work/probe.py a --b"),
    Line("--run-path --start-method=fork DIR/work/probe.py"),
    Line("--start-method=forkserver probe.py"),
    Line("--logs-specs=default probe.py"),
    Line("app a b"),
    Line("./app a"),
    Line("--nproc-per-node=2 app.pyz a"),
    Line("by-line a"),
    Line("./by-line a"),
    Line("./no-line a", status=126, refused="not-python"),
    Line("--run-path DIR/work/app a"),
    Line("--run-path no-line a"),
    Line("DIR/work/probe.py"),
    Line("package/inner.py"),
    Line("./probe.py"),
    Line("'with space.py' a"),
    Line("probe.py", env={"PYTHON_EXEC": "/usr/bin/python3"}),
    Line("probe.py", env={"PATH": "/usr/bin:/bin"}),
    Line("--no-python ./probe.sh a", env={"PYTHON_EXEC": "/nowhere/python"}),

    # Its arguments
    Line("--nproc-per-node=2 probe.py '--shard=${local_rank}' 'x${local_rank}y${local_rank}'"),
    Line("--nproc-per-node=2 probe.py '${rank}'"),
    Line("probe.py '$local_rank' '${other}' '${' '$'"),
    Line("probe.py 'cost: $$5'"),
    Line("probe.py --nproc-per-node=9 -m --help --version -h --no-python -t 3"),
    Line("-- probe.py a"),
    Line("--nproc-per-node=2 -- probe.py -- a --"),
    Line("probe.py -- --lr 0.1"),
    Line("probe.py -- -- a"),
    Line("probe.py --"),
    Line("probe.py a -- b"),
    Line("-m probe -- a"),
    Line("--no-python ./probe.sh -- a"),
    Line("--run-path DIR/work/probe.py -- a"),
    Line("probe.py '' ' ' 'a b' \"it's\" '\"' '\\' '*' '~' '#' ';' '$(date)' '`date`'"),
    Line("probe.py 'größe' '数据' 'a\nb'"),
    Line("probe.py \\xff\\xfe", arguments=("probe.py", "\udcff\udcfe")),

    # Starts of options, and options in other places
    Line("--stand --nproc_per 2 --nnode=1 --max_restart=2 probe.py"),
    Line("--redirect=3 --log-d DIR/logs probe.py"),
    Line("--nproc 2 probe.py", status=2),
    Line("-m --nproc_per_node=2 probe -m --nnodes=9"),
    Line("-m --role 17: probe -- a=b"),
    Line("-r 0:3,1:0,2:3 --nproc_per_node=3 --log-dir=DIR/logs probe.py"),
    Line("--standalone --master_port=PORT probe.py"),
    Line("--no-python python3 -u probe.py"),

    # Their environment
    Line("--nproc-per-node=2 probe.py", env={"OMP_NUM_THREADS": "7"}),
    Line("probe.py", env={"OMP_NUM_THREADS": "3"}),
    Line("--nproc-per-node=2 probe.py", env={"CUDA_VISIBLE_DEVICES": "1,0"}),
    Line("probe.py", env={"CUDA_VISIBLE_DEVICES": ""}),
    Line("probe.py", env={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}),
    Line("probe.py", env={"EMPTY": "", "LINES_": "a\nb", "EQUALS": "a=b=c", "UMLAUT": "ö"}),
    Line("probe.py", env={"RANK": "5", "WORLD_SIZE": "9", "LOCAL_RANK": "3", "MASTER_ADDR": "elsewhere",
                          "MASTER_PORT": "1", "GROUP_RANK": "2", "TORCHELASTIC_RUN_ID": "outer",
                          "TORCHELASTIC_RESTART_COUNT": "4"}),
    Line("--virtual-local-rank --nproc-per-node=2 probe.py", env={"CUDA_VISIBLE_DEVICES": "4,7"}),
    Line("--virtual_local_rank --nproc-per-node=2 probe.py '${local_rank}'", env={"CUDA_VISIBLE_DEVICES": None}),
    Line("--virtual-local-rank --nproc-per-node=2 probe.py", env={"CUDA_VISIBLE_DEVICES": "4"}, status=2),
    Line("--virtual-local-rank --nproc-per-node=2 probe.py", env={"HIP_VISIBLE_DEVICES": "5, 7"}),
    Line("--virtual-local-rank --nproc-per-node=2 probe.py",
         env={"HIP_VISIBLE_DEVICES": "5,7", "CUDA_VISIBLE_DEVICES": "1"}),
    Line("--virtual-local-rank --nproc-per-node=2 probe.py", env={"HIP_VISIBLE_DEVICES": "5"}, status=2),
    Line("--virtual-local-rank --nproc-per-node=2 probe.py",
         env={"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "4,7"}),
    Line("--nproc-per-node=2 probe.py", env={"HIP_VISIBLE_DEVICES": "5,7"}),
    Line("--role=trainer --nproc-per-node=2 probe.py"),
    Line("--signals-to-handle=SIGTERM,SIGUSR1 probe.py"),
    Line("--signals-to-handle= probe.py"),
    Line("--role= -t 3 --log-dir=DIR/logs probe.py"),
    Line("--max-restarts=3 probe.py"),

    # Standard input
    Line("probe.py", stdin="some\ninput\n", do="read"),
    Line("--nproc-per-node=2 probe.py", stdin=""),

    # Logs
    Line("-r 3 --log-dir=DIR/logs --nproc-per-node=2 probe.py"),
    Line("-r 1 --log_dir DIR/logs probe.py"),
    Line("--redirects=2 --log-dir=logs/deep/er probe.py"),
    Line("-r 0:1,1:2 --log-dir=DIR/logs --nproc-per-node=2 probe.py"),
    Line("-r 3 probe.py"),
    Line("-t 3 --log-dir=DIR/logs --nproc-per-node=2 probe.py"),
    Line("-t 3 --log-dir=DIR/logs --duplicate-stdout-filters=two --role=trainer --nproc-per-node=2 probe.py",
         env={"DDRUN_LABEL": "torchrun"}),
    Line("-t 3 --log-dir=DIR/logs probe.py", env={"DDRUN_LABEL": "torchrun"}),
    Line("--tee 1 --log-dir=DIR/logs --nproc-per-node=2 probe.py"),
    Line("-t 0:3,1:1 --log-dir=DIR/logs --nproc-per-node=2 --role=trainer probe.py"),
    Line("-r 3 -t 1 --log-dir=DIR/logs --rdzv-backend=c10d --rdzv-endpoint=localhost:0 --rdzv-id=job42 probe.py"),
    Line("-r 1 -t 2 --log-dir=DIR/logs --nproc-per-node=2 probe.py"),
    Line("-r 0 -t 0 --log-dir=DIR/logs probe.py"),
    Line("-t 3 --log-dir=/dev/null --nproc-per-node=2 probe.py"),
    Line("-r 3 --log-dir=/dev/null probe.py"),
    Line("--local-ranks-filter=1 --nproc-per-node=2 probe.py"),
    Line("--local-ranks-filter=0 -t 3 --log-dir=DIR/logs --nproc-per-node=2 probe.py"),
    Line("--local_ranks_filter=0,1 -r 1:3 --log-dir=DIR/logs --nproc-per-node=2 probe.py"),
    Line("-t 3 --log-dir=DIR/logs --log-line-prefix-template='${hostname}|${role_name}|${rank}|${local_rank}: ' "
         "--nproc-per-node=2 probe.py"),
    Line("-t 3 --log-dir=DIR/logs probe.py", env={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${rank}> "}),
    Line("-t 3 --log-dir=DIR/logs --log-line-prefix-template='${nonsense} ' probe.py", status=2,
         refused="unknown-macro"),
    Line("-t 3 --log-dir=DIR/logs --duplicate-stdout-filters=two --nproc-per-node=2 probe.py"),
    Line("-t 3 --log-dir=DIR/logs --duplicate_stdout_filters='two,, and,nothing' probe.py"),
    Line("-t 3 --log-dir=DIR/logs --duplicate-stderr-filters=one,two --nproc-per-node=2 probe.py"),
    Line("--log-dir=DIR/logs --duplicate-stdout-filters=two probe.py"),

    # Failures and restarts
    Line("--max-restarts=1 --nproc-per-node=2 -r 3 --log-dir=DIR/logs probe.py", do="once exit 1 3"),
    Line("--max_restarts 2 -t 3 --log-dir=DIR/logs probe.py", do="once exit 0 1"),
    Line("--max-restarts=1 -r 3 --log-dir=DIR/logs probe.py", do="exit 0 3", status=3),
    Line("probe.py", do="exit 0 3", status=3),
    Line("probe.py", do="exit 0 1", status=1),
    Line("--nproc-per-node=2 probe.py", do="exit 1 9", status=9),
    Line("probe.py", do="signal 0 9", status=137),
    Line("--nproc-per-node=2 probe.py", do="signal 0 11", status=139),
    Line("missing.py", status=127),
    Line("--no-python ./missing", status=127),
    Line("--no-python ./not-executable", status=126),
    Line("-m missing_module", status=1),

    # Signals
    Line("--nproc-per-node=2 probe.py", do="wait", signal="TERM", workers=2, status=143),
    Line("--nproc-per-node=2 probe.py", do="wait", signal="INT", workers=2, status=130),
    Line("--signals-to-handle=SIGUSR1,SIGTERM probe.py", do="wait", signal="USR1", status=138),
    Line("--shutdown-timeout=1 probe.py", do="stubborn", signal="TERM", status=143),

    # No effect, or another way to the same
    Line("--monitor-interval=0.5 --shutdown-timeout=5 --start-method=spawn probe.py"),
    Line("--event-log-handler=console probe.py"),
    Line("--event_log_handler=null probe.py"),

    # What only one of them takes; more of these stand above
    Line("-n 2 probe.py", accepted="short-nproc"),
    Line("probe.py : -n 2", refused="colon"),
    Line("probe.py : -m x : -r 3 : -t 3"),
    Line("--shutdown-timeout=1m30s probe.py", accepted="units"),
    Line("--local-ranks-filter=0-1 --nproc-per-node=2 probe.py", accepted="filter-ranges"),
    Line("-r 0:1,12:1 --log-dir=DIR/logs probe.py", accepted="long-local-ranks"),
    Line("probe.py", env={"PET_START_METHOD": "thread"}, status=2, refused="pet-values"),

    # Wrong usage
    Line("--help"),
    Line("", status=2),
    Line("--no-such-option probe.py", status=2),
    Line("--nproc-per-node", status=2),
    Line("--max-restarts=many probe.py", status=2),
    Line("--start-method=thread probe.py", status=2),
    Line("--nproc-per-node=0 probe.py", status=2),
    Line("--nproc-per-node=many probe.py", status=2),
    Line("--nnodes=2:1 probe.py", status=2),
    Line("--nnodes=0 probe.py", status=2),
    Line("--max-restarts=-1 probe.py", status=2),
    Line("-m --no-python probe", status=2),
    Line("-t 4 probe.py", status=2),
    Line("-r yes probe.py", status=2),
    Line("--local-ranks-filter=a probe.py", status=2),
    Line("--rdzv-conf=timeout probe.py", status=2),
    Line("--logs-specs=mine probe.py", status=2),
    Line("--local-rank=0 probe.py", status=2, refused="local-rank"),
    Line("--signals-to-handle=SIGNONSENSE probe.py", status=2, refused="unknown-signal"),
]
