"""The functions by which accelerate and torch start workers from Python, with processes of ddrun.

Nothing is forked, so that the caller may have initialized CUDA. Functions of a notebook work. What a rank raises is raised
in the caller.
"""

import dataclasses
from typing import Any, Dict, List, Optional, Set

from ddrun._group import launch
from ddrun._payload import payload

__tracebackhide__ = True  # by pytest


def notebook_launcher(function, args=(), num_processes=None, mixed_precision="no", use_port="29500", master_addr="127.0.0.1",
                      node_rank=0, num_nodes=1, rdzv_backend="static", rdzv_endpoint="", rdzv_conf=None, rdzv_id="none",
                      max_restarts=0, monitor_interval=0.1, log_line_prefix_template=None):
    """accelerate's notebook_launcher. Returns the values of this machine's ranks. use_port is for several machines."""
    precision = str(getattr(mixed_precision, "value", mixed_precision)).lower()
    if precision not in ("no", "fp8", "fp16", "bf16"):
        raise ValueError(f"mixed_precision is no, fp8, fp16 or bf16, not {mixed_precision!r}")
    if node_rank >= num_nodes:
        raise ValueError(f"node_rank has to be less than num_nodes: {node_rank}, {num_nodes}")
    config = LaunchConfig(num_nodes, num_nodes, num_processes or "auto", max_restarts=max_restarts, run_id=rdzv_id,
                          rdzv_configs=rdzv_conf or {}, log_line_prefix_template=log_line_prefix_template)
    options = [f"--env=ACCELERATE_MIXED_PRECISION={precision}"]
    if rdzv_endpoint or num_nodes > 1 and rdzv_backend != "static":
        config.rdzv_backend, config.rdzv_endpoint = rdzv_backend, rdzv_endpoint or f"{master_addr}:{use_port}"
    elif num_nodes > 1:
        options += ["--rdzv-backend=static", f"--master-addr={master_addr}", f"--master-port={use_port}"]
    if num_nodes > 1:
        options += [f"--node-rank={node_rank}"]
    return list(launch(payload(function, args), config_options(config) + options).values())


@dataclasses.dataclass
class LaunchConfig:
    """The fields of torch.distributed.launcher.api.LaunchConfig, which elastic_launch takes too."""

    min_nodes: int
    max_nodes: int
    nproc_per_node: Any
    logs_specs: Optional[Any] = None
    run_id: str = ""
    role: str = "default"
    rdzv_endpoint: str = ""
    rdzv_backend: str = ""
    rdzv_configs: Dict[str, Any] = dataclasses.field(default_factory=dict)
    rdzv_timeout: int = -1
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    log_line_prefix_template: Optional[str] = None
    metrics_cfg: Dict[str, str] = dataclasses.field(default_factory=dict)
    local_addr: Optional[str] = None
    event_log_handler: str = "null"
    numa_options: Optional[Any] = None
    signals_to_handle: str = ""
    duplicate_stdout_filters: Optional[List[str]] = None
    duplicate_stderr_filters: Optional[List[str]] = None
    virtual_local_rank: bool = False
    shutdown_timeout: Optional[int] = None
    # Until torch 2.2, then in logs_specs.
    log_dir: Optional[str] = None
    redirects: Any = 0
    tee: Any = 0
    local_ranks_filter: Optional[Set[int]] = None


def elastic_launch(config, entrypoint, health_check_server=None):
    """torch's elastic_launch(config, entrypoint)(*args): returns the values by rank, of this machine's ranks."""
    if not callable(entrypoint):
        raise TypeError("entrypoint has to be a function; the command ddrun runs programs")
    if health_check_server is not None:
        raise ValueError("health_check_server is not possible here: ddrun has no such server")
    options = config_options(config)
    return lambda *args: launch(payload(entrypoint, args), options)


def config_options(config):
    """Words of the command line. Left out is what is for torch's own processes: intervals, start method, metrics."""
    known = {field.name: field for field in dataclasses.fields(LaunchConfig)}
    for field in dataclasses.fields(config):
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if (field.name not in known or field.name == "log_line_prefix_template") and getattr(config, field.name) != default:
            raise ValueError(f"LaunchConfig.{field.name} is not possible here: {getattr(config, field.name)!r}")
    specs = getattr(config, "logs_specs", None)
    if getattr(getattr(specs, "reify", None), "__qualname__", "DefaultLogsSpecs.reify") != "DefaultLogsSpecs.reify":
        raise ValueError(f"LaunchConfig.logs_specs is not possible here: a {type(specs).__name__}, not DefaultLogsSpecs")

    def get(name, of_specs=""):
        return getattr(specs, of_specs, None) or getattr(config, name, None)

    rendezvous = {**config.rdzv_configs, **({"timeout": config.rdzv_timeout} if config.rdzv_timeout > 0 else {})}
    streams = {name: get(name, f"_{name}") or 0 for name in ("redirects", "tee")}
    filters = {f"duplicate-{stream}-filters": get(f"duplicate_{stream}_filters") or () for stream in ("stdout", "stderr")}
    given = {
        "rdzv-id": config.run_id, "role": config.role, "local-addr": config.local_addr,
        "rdzv-endpoint": config.rdzv_endpoint, "rdzv-backend": config.rdzv_endpoint and config.rdzv_backend,
        "rdzv-conf": ",".join(f"{name}={value}" for name, value in rendezvous.items()),
        "signals-to-handle": get("signals_to_handle"), "shutdown-timeout": get("shutdown_timeout"),
        "numa-binding": getattr(getattr(get("numa_options"), "affinity_mode", None), "value", None),
        "event-log-handler": get("event_log_handler"), "log-dir": get("log_dir", "_root_log_dir"),
        "local-ranks-filter": ",".join(map(str, sorted(get("local_ranks_filter", "_local_ranks_filter") or ()))),
        **{name: ",".join(f"{rank}:{int(value[rank])}" for rank in value) if isinstance(value, dict) else int(value) or ""
           for name, value in streams.items()},
        **{name: ",".join(text.replace(",", ",,") for text in texts) for name, texts in filters.items()},
    }
    options = [f"--nnodes={config.min_nodes}:{config.max_nodes}", f"--nproc-per-node={config.nproc_per_node}",
               f"--max-restarts={config.max_restarts}"]
    options += [f"--{name}={value}" for name, value in given.items() if value not in (None, "")]
    return options + ["--virtual-local-rank"] * bool(get("virtual_local_rank"))
